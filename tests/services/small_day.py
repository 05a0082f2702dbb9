"""A small day as a bundle: two cards, and something of everything that reaches across hours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

DAY = datetime(2026, 10, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def a_day(folder: Path) -> Path:
    """A small day: two cards read once a minute, gaps inside and across hours, a shared server, a job, a disk."""
    folder.mkdir(parents=True)
    lines: list[str] = []
    start = int(DAY.timestamp())
    gaps = [(2 * 3600 + 3000, 3 * 3600 + 600), (7 * 3600 + 1200, 7 * 3600 + 1900), (15 * 3600, 18 * 3600 + 60)]
    for card, pod in ((0, "chat-0"), (1, "train-0")):
        labels = f'UUID="GPU-{card}",Hostname="n1",modelName="NVIDIA L40S",namespace="apps",pod="{pod}"'
        for second in range(-600 + 7 * card, 86_400 + 600, 60):
            if not any(first <= second < past for first, past in gaps):
                at = start + second
                busy = (second // 60 * 37 + card * 11) % 89
                lines += [
                    f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {busy} {at}",
                    f"DCGM_FI_DEV_FB_USED{{{labels}}} {9_000 + busy * 3} {at}",
                    f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {90 + busy * 2.5} {at}",
                ]
    (folder / "dcgm.om").write_text("".join(f"{line}\n" for line in lines) + "# EOF\n")
    owner, tenants = "e0000000-0000-4000-8000-00000000000e", [f"{t}0000000-0000-4000-8000-00000000000{t}" for t in "ab"]
    (folder / "bundle.toml").write_text(
        'cluster = "small"\nfrom = "2026-10-01T00:00:00Z"\nto = "2026-10-02T00:00:00Z"\n'
        'now = "2026-10-02T06:00:00Z"\nwindow_seconds = 60\n'
        'platform_tenant = "ff000000-0000-4000-8000-0000000000ff"\n'
    )
    (folder / "workload_events.csv").write_text(
        "event_id,occurred_at,workload_id,tenant_id,deployment_id,namespace,pod,from_state,to_state,gpu_count,"
        "placed_class,node,gpu_uuids,reason\n"
        f"e1,2026-09-30T20:00:00Z,wl-chat,{owner},chat,apps,chat-0,,running,1,L40S,n1,,\n"
        f"e2,2026-10-01T01:12:13.456Z,wl-train,{tenants[0]},train,apps,train-0,,running,1,L40S,n1,,\n"
        f"e3,2026-10-01T16:40:01.001Z,wl-train,{tenants[0]},train,apps,train-0,running,stopped,1,L40S,n1,,\n"
    )
    (folder / "deployments.csv").write_text(
        "deployment_id,mode,owner_tenant_id,namespace,pod_pattern,model\n"
        f"chat,shared,{owner},apps,chat-*,m\ntrain,dedicated,{tenants[0]},apps,train-*,\n"
    )
    tokens = [
        f"t{hour}{tenant[0]},2026-10-01T{hour:02d}:30:00Z,{tenant},chat,{100 + hour * 7},{30 + place * hour},0\n"
        for hour in range(0, 24, 2)
        for place, tenant in enumerate(tenants)
    ]
    (folder / "token_usage.csv").write_text(
        "event_id,occurred_at,tenant_id,deployment_id,input_tokens,output_tokens,cached_tokens\n" + "".join(tokens)
    )
    (folder / "deployment_storage.csv").write_text(
        "deployment_id,size_gb,valid_from,valid_to\nchat,100,2026-09-01T00:00:00Z,\n"
    )
    (folder / "allocation_policies.json").write_text(
        '[{"id": "p1", "name": "all", "deployment_pattern": "*", "currency": "EUR", "gpu_hourly_cost": "1.30",'
        ' "overhead_pct": "7", "energy_kwh_price": "0.21", "pue": "1.3", "storage_gb_month_price": "0.05",'
        ' "idle_policy": "proportional", "effective_from": "2026-01-01T00:00:00Z", "status": "active"}]'
    )
    return folder
