"""Writes the bundle of the demo day: `python -m finops_pipeline.demo.generate DIR`.

What belongs here: what the exporters show (`dcgm.parquet`) and what the gateway wrote (`token_usage.csv`) on the
day that `README.md` describes. The rest of the bundle is copied from `bundle/` as it is. What does not belong here: any
rule of the accounting. The same bytes come out every time: whole numbers, no clock, no random generator.
"""

from __future__ import annotations

import csv
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from finops_pipeline.demo.curves import FULL, Whole, energy_mj, noise, power_mw, ramp
from finops_pipeline.demo.tokens import FILE as TOKENS

BUNDLE: Final = Path(__file__).with_name("bundle")
DAY: Final = datetime(2026, 10, 1, tzinfo=UTC)
MARGIN: Final = 600
"""Seconds that the recording reaches beyond the day on either side, so that the first and last window are whole."""
SCRAPE: Final = 15
EVENT_IDS: Final = uuid.UUID("6f1c2d3e-4b5a-4c6d-8e9f-0a1b2c3d4e5f")

DCGM: Final = pa.schema(
    [
        ("metric", pa.string()),
        ("labels", pa.map_(pa.string(), pa.string())),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("value", pa.float64()),
    ]
)


def second(text: str) -> int:
    """Seconds since the day's start of a time like `14:20` or `08:13:40`."""
    hours, minutes, seconds = (*map(int, text.split(":")), 0)[:3]
    return hours * 3600 + minutes * 60 + seconds


END: Final = second("24:00")
BEFORE, AFTER = -END, 2 * END
"""Since the day before; into the day after."""


@dataclass(frozen=True)
class Card:
    """A model of GPU: its DCGM name and what it draws and holds."""

    name: str
    idle_w: int
    full_w: int


@dataclass(frozen=True)
class Node:
    """A node, how its exporter is scraped, and the pod that exports."""

    name: str
    card: Card
    gpus: int
    prefix: str
    """of the uuids of its cards"""
    address: str
    exporter: str
    scrape_offset_ms: int
    honor_labels: bool = True
    utilization: str = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"


@dataclass(frozen=True)
class Stay:
    """A pod on some cards of a node. Load and label do not come and go together: labels lag."""

    node: str
    gpus: tuple[int, ...]
    namespace: str
    pod: str
    container: str
    start: int
    end: int
    load: Callable[[Whole, int], Whole]
    """(seconds of the day, seed) -> millionths"""
    memory_mib: int
    label_start: int
    label_end: int
    unlabelled: Mapping[int, tuple[int, int]] | None = None
    """card -> a span in which its label is gone"""


H100: Final = Card("NVIDIA H100 80GB HBM3", 72, 690)
L40S: Final = Card("NVIDIA L40S", 34, 335)

NODES: Final = (
    Node("gpu-h100-01", H100, 8, "a", "10.42.1.21:9400", "nvidia-dcgm-exporter-x7k2p", 3_137),
    Node(
        "gpu-l40s-01",
        L40S,
        4,
        "b",
        "10.42.2.22:9400",
        "nvidia-dcgm-exporter-m4q9d",
        7_412,
        utilization="DCGM_FI_DEV_GPU_UTIL",
    ),
    Node("gpu-l40s-02", L40S, 4, "c", "10.42.3.23:9400", "nvidia-dcgm-exporter-t8w5z", 11_803, honor_labels=False),
)

OUTAGE: Final = ("gpu-h100-01", second("13:07:20"), second("13:27:20"))
"""The node's scrapes fail for 20 minutes."""
MISSED: Final = ("gpu-l40s-02", (second("05:31"), second("11:47"), second("19:02")))
"""Single scrapes that fail: less than a gap (A11)."""
RESET: Final = ("gpu-l40s-01", 1, second("14:21"))
"""The card that failed is reset: its energy counter starts again."""


def chat_load(seconds: Whole, seed: int) -> Whole:
    """The chat server's load follows the tokens of the quarter of an hour around."""
    tokens = pq.read_table(TOKENS)
    per_minute = np.zeros(1440 + 16, dtype=np.int64)
    weight = np.asarray(tokens["input_tokens"], dtype=np.int64) + 4 * np.asarray(
        tokens["output_tokens"], dtype=np.int64
    )
    np.add.at(per_minute, np.asarray(tokens["minute"], dtype=np.int64) + 8, weight)
    around = np.convolve(per_minute, np.ones(15, dtype=np.int64), mode="same")
    load = around[np.clip(seconds // 60 + 8, 0, len(around) - 1)] * 780_000 // around.max()
    return np.asarray(60_000 + load + noise(seed, seconds // SCRAPE, 35_000))


def embed_load(seconds: Whole, seed: int) -> Whole:
    """A triangle over the day, highest at 14:00."""
    far = np.abs(seconds - second("14:00"))
    return 620_000 - far * 500_000 // END + noise(seed, seconds // SCRAPE, 60_000)


def train_load(start: int, steady: int) -> Callable[[Whole, int], Whole]:
    """Loading for three minutes, then steady, with a checkpoint of 40 s every half hour."""

    def load(seconds: Whole, seed: int) -> Whole:
        busy = steady * ramp(seconds, start + 20, start + 180) // FULL + noise(seed, seconds // SCRAPE, 25_000)
        checkpoint = ((seconds - start) % 1800 < 40) & (seconds > start + 180)
        return np.where(checkpoint, busy // 6, busy)

    return load


def notebook_load(seconds: Whole, seed: int) -> Whole:
    """Now and then a cell runs for some minutes."""
    running = noise(seed + 5, seconds // 300, 1_000, knot=1) > 350
    return np.where(running, 560_000, 0) + noise(seed, seconds // SCRAPE, 8_000) + 8_000


VISION_1, VISION_2 = second("09:05:17"), second("14:22:31")
LLM = second("08:12:41")

STAYS: Final = (
    Stay("gpu-h100-01", (0, 1, 2, 3), "serving", "chat-prod-0", "vllm", BEFORE, AFTER, chat_load, 71_840, BEFORE, AFTER),
    Stay(
        "gpu-h100-01", (4, 5, 6, 7), "team-research", "llm-train-0", "trainer",
        LLM, second("17:48:04"), train_load(LLM, 915_000), 68_352,
        label_start=second("08:13:40"), label_end=second("17:48:50"),
    ),
    Stay(
        "gpu-l40s-01", (0, 1), "team-vision", "vision-train-0", "trainer",
        VISION_1, second("14:20:09"), train_load(VISION_1, 840_000), 38_912,
        label_start=second("09:05:40"), label_end=second("14:20:09"),
        unlabelled={1: (second("11:00"), second("11:02"))},
    ),
    Stay(
        "gpu-l40s-01", (3,), "team-tools", "notebook-lea-0", "notebook",
        second("09:40"), second("16:10"), notebook_load, 9_216, label_start=second("09:40"), label_end=second("16:10"),
    ),
    Stay(
        "gpu-l40s-02", (0, 1), "team-vision", "vision-train-1", "trainer",
        VISION_2, second("20:31:55"), train_load(VISION_2, 840_000), 38_912,
        label_start=second("14:22:55"), label_end=second("20:31:55"),
    ),
    Stay("gpu-l40s-02", (3,), "serving", "embed-prod-0", "tei", BEFORE, AFTER, embed_load, 21_504, BEFORE, AFTER),
)  # fmt: skip


def generate(folder: Path) -> Path:
    """Write the whole bundle into `folder` (made if it is not there) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in sorted(BUNDLE.iterdir()):
        shutil.copyfile(source, folder / source.name)
    _write_tokens(folder / "token_usage.csv")
    with pq.ParquetWriter(folder / "dcgm.parquet", DCGM, compression="zstd") as writer:
        for series in _series():
            writer.write_table(series)
    return folder


def _write_tokens(path: Path) -> None:
    """The gateway writes one usage event per tenant and busy minute, as the minute ends."""
    rows = sorted(pq.read_table(TOKENS).to_pylist(), key=lambda row: (row["minute"], row["tenant_id"]))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["event_id", "occurred_at", "tenant_id", "deployment_id", "input_tokens", "output_tokens", "cached_tokens"]
        )
        for row in rows:
            ms = row["minute"] * 60_000 + 59_000 + row["requests"] % 997
            occurred = (DAY + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            event = uuid.uuid5(EVENT_IDS, f"{row['tenant_id']}|{row['minute']}")
            writer.writerow(
                [event, occurred, row["tenant_id"], "chat-prod", row["input_tokens"], row["output_tokens"], 0]
            )


def _series() -> Iterator[pa.Table]:
    """The samples of one card at a time, series after series."""
    for node in NODES:
        for gpu in range(node.gpus):
            yield from _card_series(node, gpu)


def _card_series(node: Node, gpu: int) -> Iterator[pa.Table]:
    steps = np.arange((END + 2 * MARGIN) // SCRAPE, dtype=np.int64)
    seed = 16 * NODES.index(node) + gpu
    jitter = (noise(seed=node.scrape_offset_ms, steps=steps, amplitude=1_000, knot=1) + 1_000) // 500
    instants = (steps * SCRAPE - MARGIN) * 1000 + node.scrape_offset_ms + jitter
    seconds = instants // 1000
    stays = [stay for stay in STAYS if stay.node == node.name and gpu in stay.gpus]

    load, memory = np.zeros_like(seconds), np.full_like(seconds, 4)
    for stay in stays:
        here = (seconds >= stay.start) & (seconds < stay.end)
        load = np.where(here, np.clip(stay.load(seconds, seed), 0, FULL), load)
        filled = stay.memory_mib * ramp(seconds, stay.start, stay.start + 90) // FULL
        memory = np.where(here, filled + noise(seed + 3, steps, 64) + 520, memory)
    power = power_mw(load, node.card.idle_w, node.card.full_w, seed, steps)
    energy = energy_mj(power, instants, 911_000_000_000 + seed * 37_000_000_123)
    if (node.name, gpu) == RESET[:2]:
        after = seconds >= RESET[2]
        energy = np.where(after, energy - energy[after.argmax()] + 1_042, energy)

    scraped = np.ones(len(steps), dtype=np.bool_)
    if node.name == OUTAGE[0]:
        scraped &= (seconds < OUTAGE[1]) | (seconds >= OUTAGE[2])
    if node.name == MISSED[0]:
        scraped &= ~np.isin(seconds // SCRAPE, [missed // SCRAPE for missed in MISSED[1]])

    percent = node.utilization == "DCGM_FI_DEV_GPU_UTIL"
    values = {
        node.utilization: (load // 10_000).astype(np.float64) if percent else load / FULL,
        "DCGM_FI_DEV_FB_USED": memory.astype(np.float64),
        "DCGM_FI_DEV_POWER_USAGE": power / 1000,
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": energy.astype(np.float64),
    }
    holders = np.full(len(steps), -1)
    for index, stay in enumerate(stays):
        gone = (stay.unlabelled or {}).get(gpu, (0, 0))
        labelled = (seconds >= stay.label_start) & (seconds < stay.label_end)
        holders[labelled & ~((seconds >= gone[0]) & (seconds < gone[1]))] = index
    for index in np.unique(holders):
        labels = _labels(node, gpu, stays[index] if index >= 0 else None)
        chosen = np.flatnonzero((holders == index) & scraped)
        for metric, numbers in values.items():
            yield _table(metric, labels, instants[chosen], numbers[chosen])


def _labels(node: Node, gpu: int, stay: Stay | None) -> dict[str, str]:
    """The label set as Prometheus stores it. An idle card shows the exporter's own pod, whatever `honorLabels` is."""
    exporter = {"container": "nvidia-dcgm-exporter", "namespace": "gpu-operator", "pod": node.exporter}
    labels = {
        "DCGM_FI_DRIVER_VERSION": "570.124.06",
        "Hostname": node.name,
        "UUID": f"GPU-{node.prefix}{gpu}000000-1c2d-4e5f-8a9b-0000000000{node.prefix}{gpu}",
        "device": f"nvidia{gpu}",
        "gpu": str(gpu),
        "instance": node.address,
        "job": "nvidia-dcgm-exporter",
        "modelName": node.card.name,
        **exporter,
    }
    if stay is not None:
        prefix = "" if node.honor_labels else "exported_"
        workload = {"container": stay.container, "namespace": stay.namespace, "pod": stay.pod}
        labels |= {prefix + name: value for name, value in workload.items()}
    return dict(sorted(labels.items()))


def _table(metric: str, labels: Mapping[str, str], instants_ms: Whole, values: Any) -> pa.Table:
    count, width = len(instants_ms), len(labels)
    repeated = np.tile(np.arange(width), count)
    maps: Any = pa.MapArray.from_arrays(
        pa.array(np.arange(count + 1, dtype=np.int32) * np.int32(width)),
        pa.array(list(labels)).take(repeated),
        pa.array(list(labels.values())).take(repeated),
    )
    instants = int(DAY.timestamp()) * 1_000_000 + instants_ms * 1000
    columns = [pa.array([metric]).take(np.zeros(count, dtype=np.int64)), maps, pa.array(instants), pa.array(values)]
    return pa.Table.from_arrays(columns, names=DCGM.names).cast(DCGM)


if __name__ == "__main__":
    generate(Path(sys.argv[1]))
