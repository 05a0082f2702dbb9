"""The right values of every fault's bundle, worked by hand from the rules.

A `Right` is one run of one bundle into a fresh installation: cells of the published files (`Cells`), quarantine counts,
findings, statement items and whether an hour is provisional. `unmet` compares them with what a run wrote, given as rows
of text cells, so that any implementation can be checked. What only the ledger, the policy book or a command can show
is in `STEPS`, in words. What does NOT belong here: anything that was computed by a program.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

A = "a0000000-0000-4000-8000-00000000000a"
B = "b0000000-0000-4000-8000-00000000000b"
C = "c0000000-0000-4000-8000-00000000000c"
AA = "aaaaaaaa-0000-4000-8000-00000000000a"
BB = "bbbbbbbb-0000-4000-8000-00000000000b"
CC = "cccccccc-0000-4000-8000-00000000000c"
PLATFORM = "ff000000-0000-4000-8000-0000000000ff"
H100 = "H100-80GB"
RTX = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
VGPU = "GRID A100-10C"

USAGE, ALLOCATION, FLEET = "gpu_usage.csv", "allocation.csv", "fleet.csv"

Row = dict[str, str]


@dataclass(frozen=True)
class Cells:
    """The cells of the one row of a file that `where` names; `None`: the file has no such row."""

    file: str
    where: Row
    cells: Row | None


@dataclass(frozen=True)
class Right:
    """What is right for one bundle of a fault."""

    fault: str
    bundle: str
    rules: str
    by_hand: str
    cells: tuple[Cells, ...] = ()
    # Rows of a file, counted: nothing else may be there.
    rows: dict[str, int] = field(default_factory=dict)
    # (source, key, reason) and how often.
    quarantine: dict[tuple[str, str, str], int] = field(default_factory=dict)
    # (name, a word of what it is about).
    findings: frozenset[tuple[str, str]] = frozenset()
    # (tenant, deployment) and the cells of the statement's item.
    items: dict[tuple[str, str], Row] = field(default_factory=dict)
    provisional: bool | None = None


def usage(workload_id: str, gpu_model: str = H100, **cells: str) -> Cells:
    """A usage row by workload and model, in bundles of one hour; a `tenant_id` or `hour` is part of the key."""
    key = {"workload_id": workload_id, "gpu_model": gpu_model}
    key |= {name: cells.pop(name) for name in ("tenant_id", "hour") if name in cells}
    return Cells(USAGE, key, cells)


def allocation(workload_id: str, tenant_id: str, **cells: str) -> Cells:
    key = {"workload_id": workload_id, "tenant_id": tenant_id}
    key |= {name: cells.pop(name) for name in ("hour", "gpu_model") if name in cells}
    return Cells(ALLOCATION, key, cells)


def fleet(gpu_model: str, hour: str = "10", **cells: str) -> Cells:
    return Cells(FLEET, {"gpu_model": gpu_model, "hour": hour}, cells)


RIGHT = (
    Right(
        "A15_estimated_flag_below_1ms",
        ".",
        "A15, A20",
        "0.5 GPU for 1 ms on 37 W a unit: 0.5 x 37 W x 1 ms = 18.5 mJ, half-even 18 mJ = 0.000005 Wh. 0.5 ms of estimated "
        "device time prints as 0.000, and the flag stays.",
        (
            usage("w1", "vm", gpu_seconds="0.000", energy_wh="0.000005", estimated_seconds="0.000"),
            allocation("w1", A, estimated="true"),
        ),
    ),
    Right(
        "A17b_nearest_window_first",
        ".",
        "A17 (b)",
        "The hole in the labels is 10:10-10:30. Up to its middle the nearest labelled window is of a (X), then of b (Y); at "
        "the middle both windows are equally near and the earlier one decides. The last labelled window of X begins 10:09:45, "
        "the first of Y 10:30:00; the window at 10:19:45 is 600 s from X and 615 s from Y, that at 10:20:00 is 615 s from X "
        "and 600 s from Y. So X has 10:00-10:20 = 1200 s, Y 10:20-11:00 = 2400 s.",
        (
            usage("w1", "X", gpu_seconds="1200.000", gpu_active_seconds="600.000", measured_seconds="1200.000"),
            usage("w1", "Y", gpu_seconds="2400.000", gpu_active_seconds="1200.000", measured_seconds="2400.000"),
            fleet("X", visible="3600.000", held="1200.000", idle="2400.000", matched="1200.000", unmatched="0.000"),
            fleet("Y", visible="3600.000", held="2400.000", idle="1200.000", matched="2400.000", unmatched="0.000"),
        ),
        rows={USAGE: 2},
    ),
    Right(
        "A21_inventory_part_of_window",
        ".",
        "A21",
        "Windows of 300 s that begin in [10:18:00, 10:50:14.304): 10:20, 10:25, ... 10:50: seven, 2100 s; never read.",
        (
            fleet("T4", visible="2100.000", no_data="2100.000", idle="0.000", held="0.000"),
            allocation("idle:T4", PLATFORM, gpu_seconds="2100.000", energy_wh="", estimated="true"),
        ),
        rows={USAGE: 0},
    ),
    Right(
        "bundles_quarantine_conflict_twice",
        ".",
        "A5",
        "Three contents of e1: the first counts (1 GPU, 3600 s), the two later ones are one row of the quarantine.",
        (usage("w1", "vm", gpu_seconds="3600.000"),),
        rows={"quarantine.csv": 1},
        quarantine={("workload_events", "e1", "conflict"): 2},
    ),
    Right(
        "container_named_exporter",
        "bundle",
        "A8",
        "Two busy cards, 600 W and 10 GB: the pod of onnx has one all hour (3600 s, 600 Wh, 0.95 x 3600 = 3420 s), w2 the "
        "other. Nothing is idle. Each 2.10 x 1.18 + 0.6 x 1.4 x 0.21 = 2.478 + 0.1764 = 2.6544.",
        (
            usage("n/onnx-export-0", gpu_seconds="3600.000", gpu_active_seconds="3420.000", energy_wh="600.000000"),
            usage("w2", gpu_seconds="3600.000", gpu_active_seconds="3420.000", energy_wh="600.000000"),
            allocation("n/onnx-export-0", A, amount="2.654400000", deployment_id="onnx"),
            allocation("w2", B, amount="2.654400000"),
            fleet(H100, visible="7200.000", held="7200.000", idle="0.000"),
        ),
        rows={USAGE: 2, ALLOCATION: 2},
    ),
    Right(
        "copies_taken_for_per_process",
        "bundle",
        "A19",
        "Three pods with the device's own 40 GB and 0.714 beside a row without a pod: copies. A third each: 40 x 3600 / 3 = "
        "48000 GB-s, 0.714 x 3600 / 3 = 856.8 s, 300 Wh / 3 = 100 Wh; a quarter of a card is 900 s.",
        tuple(
            usage(
                name,
                gpu_seconds="900.000",
                gpu_active_seconds="856.800",
                gpu_memory_gb_seconds="48000.000",
                energy_wh="100.000000",
                measured_seconds="3600.000",
            )
            for name in ("w0", "w1", "w2")
        ),
        rows={USAGE: 3},
    ),
    Right(
        "crash_rerun_backfill_nothing_to_do",
        "t1a",
        "A24-A26",
        "w1 (d1, dedicated) and w2 (s1, 70 : 30) two hours at 2.00: A 4.00 for d1, 2 x 1.40 and 2 x 0.60 for s1; 8.00.",
        items={(AA, "d1"): {"amount": "4.00"}, (AA, "s1"): {"amount": "2.80"}, (BB, "s1"): {"amount": "1.20"}},
    ),
    Right(
        "crash_rerun_backfill_nothing_to_do",
        "t1d",
        "A24",
        "As t1a and 1000 GB of d1 for two hours: September has 720 hours, 1000 x 7.20 / 720 = 10.00 an hour; 24.00 for d1.",
        items={(AA, "d1"): {"amount": "24.00"}, (AA, "s1"): {"amount": "2.80"}, (BB, "s1"): {"amount": "1.20"}},
    ),
    Right(
        "empty_prometheus_not_provisional",
        "bundle",
        "A16, A20",
        "Ran 3600 s by its events; nothing was read, and there are no watts for the class: all of it is missing.",
        (usage("w", gpu_seconds="3600.000", missing_seconds="3600.000", energy_wh=""),),
        provisional=True,
    ),
    Right(
        "inventory_end_ignored",
        "bundle",
        "A21",
        "The row ends 10:15: visible 900 s, of which measured up to the window of the last reading (10:14:04), 855 s idle, "
        "and 45 s no_data. 90 W: the counter rises 90 x 844.137 s to the last reading, and the window's rest by power: 855 s "
        "x 90 W = 76.95 kJ = 21.375 Wh. Nothing in hour 11. w has the other card.",
        (
            fleet(H100, visible="4500.000", held="3600.000", idle="855.000", no_data="45.000"),
            fleet(H100, hour="11", visible="3600.000", held="3600.000", idle="0.000", no_data="0.000"),
            allocation(f"idle:{H100}", PLATFORM, hour="10", gpu_seconds="900.000", energy_wh="21.375000"),
            Cells(ALLOCATION, {"workload_id": f"idle:{H100}", "hour": "11"}, None),
        ),
    ),
    Right(
        "label_spoof",
        "bundle",
        "A8",
        "Both groups name a pod and neither is the exporter's: the first group has the time (by the default of the labels), "
        "and the finding names both.",
        (usage("b/victim-0", gpu_seconds="3600.000", energy_wh="600.000000"),),
        rows={USAGE: 1},
        findings=frozenset({("two_pods", "a/mine-0"), ("two_pods", "b/victim-0")}),
    ),
    Right(
        "late_disk_never_charged",
        "t1a",
        "A24-A26",
        "As crash_rerun_backfill_nothing_to_do/t1a: 8.00.",
        items={(AA, "d1"): {"amount": "4.00"}, (AA, "s1"): {"amount": "2.80"}, (BB, "s1"): {"amount": "1.20"}},
    ),
    Right(
        "late_disk_never_charged",
        "t1d",
        "A24",
        "With the disk from 10:00: d1 4.00 + 2 x 10.00 = 24.00; 28.00 together.",
        items={(AA, "d1"): {"amount": "24.00"}, (AA, "s1"): {"amount": "2.80"}, (BB, "s1"): {"amount": "1.20"}},
    ),
    Right(
        "late_disk_never_charged",
        "t1e",
        "A24",
        "Hour 11 alone: d1 2.00 + 10.00, s1 1.40 and 0.60.",
        items={(AA, "d1"): {"amount": "12.00"}, (AA, "s1"): {"amount": "1.40"}, (BB, "s1"): {"amount": "0.60"}},
    ),
    Right(
        "leader_worker_uuids",
        "bundle",
        "A17 (a)",
        "Both cards are named, 2 units take both whole: 7200 s, 2 x 300 Wh; the second pod holds nothing. 2 x 2.478 + 0.6 x "
        "1.4 x 0.21 = 5.1324.",
        (
            usage("lws", gpu_seconds="7200.000", energy_wh="600.000000", measured_seconds="7200.000"),
            allocation("lws", A, amount="5.132400000"),
        ),
        rows={USAGE: 1, ALLOCATION: 1},
        findings=frozenset({("uninvited_pod", "n/lws-0-1")}),
    ),
    Right(
        "mig_instance_id_reused",
        "bundle",
        "A7, A19",
        "Read to 10:29:34 (measured to 10:29:45) and from 10:32:04 (measured from 10:32:00). s2 has the 3g for 1785 s: 1785 x "
        "3/7 = 765 s, its activity half of that. w1 has the 1g to 10:30: 1800/7 = 257.143 s, 1/4 of 350 W x 1800 s = 175 Wh "
        "/ 4 = 43.75 Wh, activity 0.5 x 1800/7 = 128.571 s. Cut anew: s4 has the 1g for 1680 s = 240 s and 1/4 of 350 W x "
        "1680 s = 40.833333 Wh, w3 the 3g: 720 s and 122.5 Wh.",
        (
            usage("n/s2", gpu_seconds="765.000", gpu_active_seconds="382.500", energy_wh="130.156250"),
            usage("w1", gpu_seconds="257.143", gpu_active_seconds="128.571", energy_wh="43.750000"),
            usage("n/s4", gpu_seconds="240.000", gpu_active_seconds="120.000", energy_wh="40.833333"),
            usage("w3", gpu_seconds="720.000", gpu_active_seconds="360.000", energy_wh="122.500000"),
        ),
        rows={USAGE: 4},
    ),
    Right(
        "model_label_renamed",
        "bundle",
        "section 2, A23",
        "One model under two spellings, named as in [models]: the policy with the model, 1 h x 2.00.",
        (usage("w", gpu_seconds="3600.000"), allocation("w", A, amount="2.000000000", policy_id="h100")),
        rows={USAGE: 1, FLEET: 1},
    ),
    Right(
        "no_labels_double",
        "bundle",
        "A36",
        "Idle line: 7200 s, 2 x 500 Wh, 2 x 40 GB x 3600 s. All of it goes to w1 and w2, half each; no idle line is left. "
        "Each 2.10 x 1.18 + 0.5 x 1.4 x 0.21 = 2.478 + 0.147 = 2.625.",
        (
            *(
                usage(
                    name,
                    gpu_seconds="3600.000",
                    gpu_active_seconds="",
                    gpu_memory_gb_seconds="144000.000",
                    energy_wh="500.000000",
                    estimated_seconds="3600.000",
                    methods="pooled=3600.000",
                )
                for name in ("w1", "w2")
            ),
            allocation("w1", A, amount="2.625000000", estimated="true"),
            allocation("w2", B, amount="2.625000000", estimated="true"),
            Cells(ALLOCATION, {"usage_type": "gpu_idle"}, None),
            fleet(H100, visible="7200.000", idle="7200.000", unmatched="7200.000", matched="0.000"),
        ),
    ),
    Right(
        "odd_mig_profile_silently_1g",
        "bundle",
        "A19",
        "Four boards with one instance of 3 slices each, in four spellings: 3600 x 3/7 = 1542.857 s, activity half of it; "
        "the only visible instance has the board's 300 Wh.",
        tuple(
            usage(f"n/p{n}", gpu_seconds="1542.857", gpu_active_seconds="771.429", energy_wh="300.000000")
            for n in range(4)
        ),
        rows={USAGE: 4},
    ),
    Right(
        "owner_change_rewrites_history",
        "t4a",
        "A25",
        "d1 is A's: three hours at 2.00.",
        items={(AA, "d1"): {"amount": "6.00"}},
    ),
    Right(
        "owner_change_rewrites_history",
        "t4b",
        "A25",
        "Into a fresh installation, which knows no other owner: d1 6.00 to B; w9 half an hour: 1.00.",
        items={(BB, "d1"): {"amount": "6.00"}, (CC, "d9"): {"amount": "1.00"}},
    ),
    *(
        Right(
            "per_process_only_in_read_windows",
            bundle,
            "A19",
            "wa 10 GB and 0.30, wb 4 GB and 0.10 in every window, whatever the scrape interval: 36000 and 14400 GB-s, 1080 "
            "and 360 s. Energy is halved: 150 Wh each.",
            (
                usage("wa", gpu_memory_gb_seconds="36000.000", gpu_active_seconds="1080.000", energy_wh="150.000000"),
                usage("wb", gpu_memory_gb_seconds="14400.000", gpu_active_seconds="360.000", energy_wh="150.000000"),
            ),
            rows={USAGE: 2},
        )
        for bundle in ("bundle_60s", "bundle_same_load_at_15s")
    ),
    Right(
        "rows_without_uuid",
        "bundle",
        "A7",
        "Four metrics of GPU 2 without a uuid, one reading a minute: 60 each in the hour (80 in the file). w is unharmed.",
        (usage("w", gpu_seconds="3600.000", energy_wh="300.000000"),),
        rows={USAGE: 1, "quarantine.csv": 4},
        quarantine={
            ("dcgm", f"node-1/2:DCGM_FI_{metric}", "no_uuid"): 60
            for metric in ("DEV_FB_USED", "DEV_POWER_USAGE", "DEV_TOTAL_ENERGY_CONSUMPTION", "PROF_GR_ENGINE_ACTIVE")
        },
    ),
    Right(
        "rtx_pro_6000_slices",
        "bundle",
        "A19",
        "Four instances of one slice fill a card of four: 900 s each, 12 GB x 3600 = 43200 GB-s, half busy 450 s, 400 / 4 = "
        "100 Wh.",
        tuple(
            usage(
                name,
                RTX,
                gpu_seconds="900.000",
                gpu_active_seconds="450.000",
                gpu_memory_gb_seconds="43200.000",
                energy_wh="100.000000",
            )
            for name in ("w0", "w1", "n/s2", "n/s3")
        ),
        rows={USAGE: 4},
    ),
    Right(
        "samples_pod_beside_lifecycle",
        "bundle",
        "A17, A18",
        "w takes the card whole: 3600 s, 300 Wh, 10 GB x 3600, half busy. 2.478 + 0.3 x 1.4 x 0.21 = 2.5662.",
        (
            usage(
                "w",
                gpu_seconds="3600.000",
                gpu_active_seconds="1800.000",
                gpu_memory_gb_seconds="36000.000",
                energy_wh="300.000000",
            ),
            allocation("w", A, amount="2.566200000"),
            fleet(H100, visible="3600.000", held="3600.000", unattributed="0.000"),
        ),
        rows={USAGE: 1, ALLOCATION: 1},
        findings=frozenset({("uninvited_pod", "monitoring/gpu-health-x")}),
    ),
    Right(
        "statement_policy_id_of_two_models",
        ".",
        "A30, bundles.md",
        "w1 holds an H (std, 1.00) and an L (policy L, 0.50) for two hours: 3.00; of `L` and `std` in the latest hour the "
        "highest id is `std`. Two idle H at 0.30, two hours: 1.20, by the hour's GPU-seconds to the only tenant.",
        items={
            (AA, "d1"): {"amount": "3.00", "policy_id": "std"},
            (AA, "idle"): {"amount": "1.20", "policy_id": "idle"},
        },
    ),
    Right(
        "stuck_energy_counter",
        "bundle",
        "A20",
        "The counter stands at 0 for more than 120 s while power reads 300 W: power x 1 h = 300 Wh, measured.",
        (
            usage("w", energy_wh="300.000000", measured_seconds="3600.000"),
            allocation("w", A, amount="2.566200000", estimated="false"),
        ),
    ),
    Right(
        "tenant_moves_mid_hour",
        "bundle",
        "A4",
        "Half an hour each: 1800 s, 500 W x 0.5 h = 250 Wh, 1.00.",
        (
            usage("w1", "vm", tenant_id=AA, gpu_seconds="1800.000", energy_wh="250.000000"),
            usage("w1", "vm", tenant_id=BB, gpu_seconds="1800.000", energy_wh="250.000000"),
            allocation("w1", AA, gpu_seconds="1800.000", amount="1.000000000"),
            allocation("w1", BB, gpu_seconds="1800.000", amount="1.000000000"),
        ),
        rows={USAGE: 2, ALLOCATION: 2},
    ),
    Right(
        "two_jobs_60s_all_estimated",
        "bundle",
        "A11",
        "Each target reads every 60 s, readings lie 7 and 53 s apart: below 2.5 x 60 s, so everything is measured. A third "
        "each: 48000 GB-s, 856.8 s, 100 Wh.",
        tuple(
            usage(
                name,
                gpu_seconds="900.000",
                gpu_active_seconds="856.800",
                gpu_memory_gb_seconds="48000.000",
                energy_wh="100.000000",
                measured_seconds="3600.000",
                estimated_seconds="0.000",
            )
            for name in ("w0", "w1", "w2")
        ),
    ),
    Right(
        "vgpu_uuid_changes",
        "bundle",
        "A21, A36",
        "Read 10:00-10:20, 10:21-10:40 and 10:41-11:00 under three uuids: 1200 + 1140 + 1140 = 3480 s visible, all idle and "
        "given to the VM, whose 120 s between them are missing. 5000 MiB x 3480 s / 1024 = 16992.1875 GB-s. 2.10 x 1.18 = "
        "2.478, no energy known.",
        (
            usage(
                "vm",
                VGPU,
                gpu_seconds="3600.000",
                gpu_memory_gb_seconds="16992.188",
                energy_wh="",
                estimated_seconds="3480.000",
                missing_seconds="120.000",
                methods="pooled=3480.000",
            ),
            allocation("vm", A, amount="2.478000000", estimated="true"),
            fleet(VGPU, visible="3480.000", idle="3480.000", no_data="0.000", unmatched="3600.000"),
        ),
        rows={USAGE: 1, ALLOCATION: 1},
        findings=frozenset({("device_gone", "GPU-0000b01e"), ("device_gone", "GPU-0000b01f")}),
    ),
)

# What takes several steps, a policy book or a command's output: the right end, by hand.
STEPS = {
    "crash_rerun_backfill_nothing_to_do": "After t1a, a run of t1d that is killed once its events are booked, and a backfill"
    " of t1d: statement and ledger both 28.00 (d1 24.00), and until then both hours are out of date (A32).",
    "late_disk_never_charged": "After t1a and t1e, hour 10 is out of date and the month does not close; after a backfill of"
    " t1d 28.00 (d1 24.00).",
    "owner_change_rewrites_history": "After t4a, the month's close and a backfill of t4b: d1's three September hours stay"
    " with A (the row was A's when they began), the October statement corrects by d9's 1.00 alone.",
    "policy_cannot_be_ended": "p1 gets the end 2026-10-01T00:00Z once, while that hour has not begun: hours before it keep"
    " 2.00, from it on the next policy that matches applies. Retired policies apply in no hour.",
    "display_exponent": "A quota of 10 is shown as `10`, nothing given back as `0.000000000`.",
}


def unmet(
    right: Right,
    files: dict[str, list[Row]],
    statement_items: list[dict[str, Any]],
    findings: set[tuple[str, str]] | None = None,
    *,
    provisional: bool | None = None,
) -> list[str]:
    """What of `right` a run does not have; `files` are the rows of the CSV files as text cells."""
    found = []
    for wanted in right.cells:
        rows = [row for row in files[wanted.file] if _is(row, wanted.where)]
        if wanted.cells is None:
            found += [f"{wanted.file}: a row that should not be: {row}" for row in rows]
        elif len(rows) != 1:
            found.append(f"{wanted.file}: {len(rows)} rows with {wanted.where}")
        else:
            got = {name: rows[0][name] for name in wanted.cells}
            found += [f"{wanted.file} {wanted.where}: {got}, not {wanted.cells}"] if got != wanted.cells else []
    for name, count in right.rows.items():
        found += [f"{name}: {len(files[name])} rows, not {count}"] if len(files[name]) != count else []
    quarantine = {(row["source"], row["key"], row["reason"]): row["detail"] for row in files["quarantine.csv"]}
    for key, count in right.quarantine.items():
        if str(count) not in quarantine.get(key, ""):
            found.append(f"quarantine {key}: {quarantine.get(key)}, not {count}")
    items = {(item["tenant_id"], item["deployment_id"]): item for item in statement_items}
    for pair, cells in right.items.items():
        item = items.get(pair, {"allocated": {}})
        shown = {name: {**item, **item["allocated"]}.get(name) for name in cells}
        found += [f"item {pair}: {shown}, not {cells}"] if shown != cells else []
    if right.items and set(items) != set(right.items):
        found.append(f"items {sorted(items)}, not {sorted(right.items)}")
    for name, word in right.findings if findings is not None else ():
        if not any(name == each and word in subject for each, subject in findings or ()):
            found.append(f"no finding {name} about {word}")
    if right.provisional is not None and provisional is not None and provisional != right.provisional:
        found.append(f"provisional {provisional}")
    return found


def _is(row: Row, where: Row) -> bool:
    """Whether a row is the one that `where` names; an hour is told by its two digits."""
    return all((row[name][11:13] if name == "hour" else row[name]) == value for name, value in where.items())
