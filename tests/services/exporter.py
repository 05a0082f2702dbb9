"""A small DCGM exporter on loopback: two GPUs whose values change with every scrape, as text."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tests.services.prometheus_server import free_port

NODE, MODEL = "gpu-node-01", "NVIDIA H100 80GB HBM3"
HELD, IDLE = (f"GPU-{index:08}-0000-4000-8000-{index:012}" for index in (1, 2))
NAMESPACE, POD = "team-a", "train-0"


class Exporter:
    """`HELD` carries a pod's labels; its power follows the clock, and its counter is the exact integral of it."""

    def __init__(self) -> None:
        exporter = self
        self.scrapes = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.scrapes += 1
                body = page(time.time()).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def config(self, *, honor_labels: bool = False) -> str:
        """A Prometheus configuration that scrapes it each second, as the chart does: the exporter's pod is a label."""
        return f"""
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
- job_name: nvidia-dcgm-exporter
  honor_labels: {str(honor_labels).lower()}
  static_configs:
  - targets: ["127.0.0.1:{self._server.server_port}"]
    labels: {{namespace: gpu-operator, pod: nvidia-dcgm-exporter-9tq4x, container: nvidia-dcgm-exporter}}
"""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def watts(at: float) -> float:
    """Of the held GPU: up and down between 400 and 600 W, a second a step."""
    return 400.0 + 20.0 * (int(at) % 11)


def millijoules(at: float) -> int:
    """What `watts` have summed up to since 1970."""
    second = int(at)
    rounds, step = divmod(second, 11)
    before = rounds * sum(400_000 + 20_000 * s for s in range(11)) + sum(400_000 + 20_000 * s for s in range(step))
    return before + round((at - second) * watts(at) * 1000)


def page(at: float) -> str:
    held = f'gpu="0",UUID="{HELD}",modelName="{MODEL}",Hostname="{NODE}",pci_bus_id="00000000:18:00.0"'
    held += f',container="main",namespace="{NAMESPACE}",pod="{POD}"'
    idle = f'gpu="1",UUID="{IDLE}",modelName="{MODEL}",Hostname="{NODE}",pci_bus_id="00000000:2A:00.0"'
    rows = {
        "DCGM_FI_DEV_GPU_UTIL": (int(at) % 40 + 50, 0),
        "DCGM_FI_DEV_FB_USED": (40_000 + int(at) % 7, 4),
        "DCGM_FI_DEV_POWER_USAGE": (watts(at), 70.0 + (int(at) % 3) / 10),
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (millijoules(at), round(at * 70_000)),
        "DCGM_FI_DEV_SM_CLOCK": (1980, 345),
    }
    lines = []
    for metric, values in rows.items():
        lines.append(f"# TYPE {metric} {'counter' if 'ENERGY' in metric else 'gauge'}")
        lines += [f"{metric}{{{labels}}} {value}" for labels, value in zip((held, idle), values, strict=True)]
    return "\n".join([*lines, ""])
