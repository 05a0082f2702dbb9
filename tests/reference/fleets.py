"""Small random fleets with everything that goes wrong in real ones, from one seed.

A fleet is plain data for the reference (`reference.py`) and, through `fast.py`, for the pipeline. Faults are named
features, so that a test can leave one out by name. What does NOT belong here: any expectation about the result.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from fractions import Fraction

from .reference import (
    DAY,
    ENERGY,
    HOUR,
    MEMORY,
    NAMES,
    POWER,
    PROF,
    UTIL,
    Deployment,
    Event,
    InventoryEntry,
    Sample,
    Settings,
)

START = 1_790_848_800_000  # 2026-10-01T10:00:00Z
RAW = {
    "H100": "NVIDIA H100 80GB HBM3",
    "A30": "NVIDIA A30",
    "T4": "Tesla T4",
    "RTX": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "X99": "NVIDIA X99 64GB",
}
# The platform's names in [models]; the others stay as DCGM writes them.
PLATFORM = {"H100": "H100-80GB", "T4": "T4"}
MEMORY_MIB = {"H100": 9_000, "A30": 5_000, "T4": 15_000, "RTX": 9_000, "X99": 9_000}
CAPS = {"H100": 690, "A30": 160, "T4": 69, "RTX": 500, "X99": 500}
LAYOUTS = {
    "H100": (
        (("2", "3g.40gb"), ("3", "2g.20gb"), ("9", "1g.10gb"), ("10", "1g.10gb")),
        (("1", "4g.40gb"), ("2", "3g.40gb")),
        (("2", "3g.40gb"), ("5", "2g.20gb")),
        (("7", "1g.10gb"), ("8", "1g.10gb"), ("13", "1g.10gb")),
    ),
    "A30": ((("1", "2g.12gb"), ("2", "2g.12gb")), (("1", "2g.12gb"), ("5", "1g.6gb"), ("6", "1g.6gb"))),
    "RTX": ((("3", "1g.24gb"), ("4", "1g.24gb"), ("5", "2g.48gb")), (("3", "2g.48gb"), ("4", "1g.24gb"))),
    "X99": ((("1", "3g.32gb"), ("2", "1g.8gb")), (("1", "1g.8gb"), ("2", "3g.32gb"), ("4", "2g.16gb"))),
}
# Pairs of layouts that use the same instance ids for other profiles.
RECUTS = {
    "H100": ((("1", "1g.10gb"), ("2", "3g.40gb")), (("1", "3g.40gb"), ("2", "1g.10gb"), ("5", "2g.20gb"))),
    "A30": ((("1", "2g.12gb"), ("5", "1g.6gb")), (("1", "1g.6gb"), ("5", "2g.12gb"))),
}
CLASSES = {
    "H100-80GB": Fraction(1),
    "T4": Fraction(1),
    "T4-half": Fraction(1, 2),
    "T4-quarter": Fraction(1, 4),
    "H100-1g": Fraction(1, 7),
    "H100-3g": Fraction(3, 7),
}
NODES = ("node-0", "node-1")
OLD_NAMES = {metric: name for name, metric in NAMES.items() if name != metric}
OLD_LABELS = {"UUID": "uuid", "namespace": "pod_namespace", "pod": "pod_name", "container": "container_name"}
FEATURES = frozenset(
    {
        "mig",
        "reconfigure",
        "shared_labels",
        "flips",
        "processes",
        "outages",
        "long_outages",
        "drops",
        "rejected",
        "absent",
        "counter_faults",
        "two_jobs",
        "churn",
        "old_names",
        "slow",
        "slow_mig",
        "edges",
        "odd_counts",
        "named",
        "named_gone",
        "inventory",
        "faulty_events",
        "reused_pods",
        "re_placed",
        "label_noise",
        "mixed_util",
        "missing_copies",
        "far_readings",
        # Found with the rules' newer text, one name for each kind.
        "uninvited",
        "two_intervals",
        "no_labels",
        "nodes",
        "reused_ids",
        "odd_profiles",
        "other_cards",
        "spellings",
        "inventory_ends",
        "vanished",
        "new_uuids",
        "stuck_counter",
        "slow_processes",
        "copies_beside",
        "exporter_names",
        "two_pods",
        "no_uuid",
        "moves",
        "validity",
        "nothing_read",
    }
)

# Faults in which the pipeline does not follow the text yet; the comparison leaves them out.
OPEN: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Fleet:
    """Everything that an hour's accounting reads."""

    samples: list[Sample]
    events: list[Event]
    deployments: list[Deployment]
    inventory: list[InventoryEntry]
    settings: Settings
    hours: list[int]
    now: int

    def without(self, **changes: object) -> Fleet:
        """A copy with other content."""
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass
class Board:
    """A board while the fleet is made up."""

    uuid: str
    card: str
    scrape: int
    offset: int
    layouts: list[tuple[int, tuple[tuple[str, str], ...]]]
    mode: str
    node: str
    boots: list[int] = field(default_factory=list)
    labels: dict[str, list[tuple[int, int, tuple[str, str]]]] = field(default_factory=dict)

    def layout(self, at: int) -> tuple[tuple[str, str], ...]:
        return next(layout for since, layout in reversed(self.layouts) if since <= at)

    def uuid_at(self, at: int) -> str:
        """A vGPU has a new uuid from each boot on."""
        boots = sum(boot <= at for boot in self.boots)
        return f"{self.uuid}-{boots}" if boots else self.uuid

    def devices(self) -> list[str]:
        return sorted({instance for _, layout in self.layouts for instance, _ in layout})


@dataclass
class Faults:
    """What is wrong with a board's rows, and in which spans of time."""

    never: set[str]
    missing: dict[str, list[tuple[int, int]]]
    garbage: list[tuple[int, int]]
    no_labels: dict[str, list[tuple[int, int]]]
    copies_lost: list[tuple[int, int]]
    no_uuid: list[tuple[int, int]]
    two_pods: list[tuple[int, int]]
    respelled: list[tuple[int, int, str]]
    jobs_without_pods: set[str]
    container: str

    def spelling(self, at: int, usual: str) -> str:
        """The model's name at an instant."""
        return next((name for begin, end, name in self.respelled if begin <= at < end), usual)


def fleet_of(seed: int, features: frozenset[str] = FEATURES) -> Fleet:
    """The fleet of a seed; the same seed and features give the same fleet."""
    return _Maker(random.Random(seed), features).make()


class _Maker:
    def __init__(self, rng: random.Random, features: frozenset[str]) -> None:
        self.rng, self.features = rng, features

    def chance(self, feature: str, probability: float) -> bool:
        """Draws also where the feature is off, so that the rest of the fleet stays."""
        drawn = self.rng.random() < probability
        return drawn and feature in self.features

    def instant(self) -> int:
        """An odd millisecond of the period or a little around it."""
        rng = self.rng
        at = rng.randrange(self.begin, self.end)
        return rng.choice((at, at, at // 1000 * 1000, at // 60000 * 60000, round(at / HOUR) * HOUR))

    def make(self) -> Fleet:
        rng = self.rng
        self.window = rng.choice((15, 30, 60, 60, 60, 300))
        hours = rng.choice((1, 1, 2, 3)) if self.window > 15 else 1
        around = rng.choice((0, 20, 45)) * 60_000
        self.begin, self.end = START - around, START + hours * HOUR + around
        self.unlabelled = self.chance("no_labels", 0.15)
        boards = [self.board(number) for number in range(rng.choice((1, 1, 2, 2, 3, 4)))]
        pods = [("lab", f"nb-{n}") for n in range(3)] + [("scratch", "pad-0"), ("serving", "chat-0")]
        events = self.workloads(boards, pods)
        samples = [sample for board in boards for sample in self.samples(board)]
        if self.chance("nothing_read", 0.06):
            dark = rng.choice((self.begin, START)), rng.choice((START + HOUR, self.end + DAY))
            samples = [sample for sample in samples if not dark[0] <= sample.at < dark[1]]
        rng.shuffle(samples)
        kept = [deployment for deployment in self.deployments() if rng.random() < 0.8]
        inventory = [row for board in boards if self.chance("inventory", 0.3) for row in self.listed(board)]
        if self.chance("inventory", 0.1):
            inventory.append(InventoryEntry("GPU-ffff", RAW["T4"], START - HOUR, None, rng.choice(NODES)))
        now = self.end + 48 * HOUR
        hour_starts = [START + n * HOUR for n in range(hours)]
        return Fleet(samples, events, kept, inventory, self.settings(), hour_starts, now)

    def settings(self) -> Settings:
        rng = self.rng
        card_limits = {
            RAW["H100"]: (Fraction(700), Fraction(80)),
            RAW["A30"]: (Fraction(165), None),
            "T4": (Fraction(70), Fraction(15)),
        }
        watts: dict[str, int | str] = {
            "H100-80GB": 650,
            "T4-half": 37,
            "H100-1g": "90.7",
            "T4": 60,
            RAW["A30"]: 121,
            "T4-quarter": 18,
        }
        return Settings(
            window_seconds=self.window,
            models={RAW[card]: name for card, name in PLATFORM.items()},
            card_limits={name: limit for name, limit in card_limits.items() if rng.random() < 0.7},
            class_watts={name: Fraction(watt) for name, watt in watts.items() if rng.random() < 0.5},
            class_fraction={name: part for name, part in CLASSES.items() if part < 1},
        )

    def deployments(self) -> list[Deployment]:
        found = [
            Deployment("nb", "tenant-nb", "lab", "nb-*"),
            Deployment("nb-1", "tenant-one", "lab", "nb-1"),
            Deployment("nb-0", "tenant-zero", "lab", "n*"),
            Deployment("nb-9", "tenant-nine", "lab", "nb-?"),
            Deployment("chat", "tenant-chat", "serving", "chat-*"),
        ]
        rows = []
        for deployment in found:
            change = self.rng.choice((START, START + HOUR, self.instant()))
            if not self.chance("validity", 0.4):
                rows.append(deployment)
                continue
            rows.append(replace(deployment, start=self.rng.choice((None, START - DAY)), end=change))
            if self.rng.random() < 0.6:  # the owner changes; without the second row the deployment has ended
                rows.append(replace(deployment, owner_tenant_id="tenant-new", start=change))
        return rows

    def board(self, number: int) -> Board:
        rng = self.rng
        card = rng.choice(("H100", "H100", "A30", "T4"))
        if self.chance("other_cards", 0.15):
            card = rng.choice(("RTX", "X99"))
        whole: tuple[tuple[str, str], ...] = (("", ""),)
        layouts = [(0, whole)]
        if card in LAYOUTS and self.chance("mig", 0.5):
            layouts = [(0, rng.choice(LAYOUTS[card]))]
        if card in LAYOUTS and self.chance("reconfigure", 0.35):
            for _ in range(rng.choice((1, 1, 2))):
                layouts.append((self.instant(), rng.choice((whole, *LAYOUTS[card]))))
            layouts.sort()
        if card in RECUTS and self.chance("reused_ids", 0.15):
            first, second = rng.sample(RECUTS[card], 2)
            layouts = [(0, first), (self.instant(), second)]
        layouts = [(at, self.odd_profiles(layout)) for at, layout in layouts]
        scrape = self.window * 1000
        slower = rng.choice((30_000, 60_000, 120_000, 600_000))
        simple = len(layouts) == 1 and layouts[0][1] == whole
        if self.chance("slow", 0.25) and (simple or "slow_mig" in self.features):
            scrape = slower
        mode = rng.choice(("copies", "copies", "flips", "processes"))
        if (mode == "flips" and "flips" not in self.features) or (
            mode == "processes" and "processes" not in self.features
        ):
            mode = "copies"
        if self.chance("copies_beside", 0.12):
            mode = "beside"
        if self.chance("slow_processes", 0.12):
            mode, scrape = "processes", max(60_000, self.window * 1000)
        offset = 0 if self.chance("edges", 0.2) else rng.randrange(1, scrape)
        uuid = f"GPU-{'badc'[number % 4]}{number}"
        node = rng.choice(NODES) if self.chance("nodes", 0.7) else f"node-{uuid[-1]}"
        boots = sorted(self.instant() for _ in range(rng.choice((1, 2, 3))))
        return Board(uuid, card, scrape, offset, layouts, mode, node, boots if self.chance("new_uuids", 0.08) else [])

    def odd_profiles(self, layout: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """The same instances with their profiles written in another way, or in a way that nobody understands."""
        found = []
        for instance, profile in layout:
            odd = self.rng.choice((f"MIG {profile}", f"1c.{profile}", profile.upper(), f"{profile}+me", "custom", ""))
            found.append((instance, odd if instance and self.chance("odd_profiles", 0.15) else profile))
        return tuple(found)

    def listed(self, board: Board) -> list[InventoryEntry]:
        rng = self.rng
        name = board.uuid
        instance = rng.choice(board.devices())
        if instance and rng.random() < 0.8:
            name += f"/{instance}"
        model = RAW[board.card] if rng.random() < 0.5 else PLATFORM.get(board.card, RAW[board.card])
        end = None if rng.random() < 0.5 else self.instant() // (self.window * 1000) * self.window * 1000
        rows = [InventoryEntry(name, model, START - 10 * HOUR, end, board.node)]
        if self.chance("inventory_ends", 0.5):
            end = self.instant()
            rows = [replace(rows[0], end=end)]
            if rng.random() < 0.3:
                rows.append(replace(rows[0], start=end + rng.choice((0, 1, 900_000)), end=None))
        return rows

    # Workloads and labels ---------------------------------------------------------------------------------------------

    def workloads(self, boards: list[Board], pods: list[tuple[str, str]]) -> list[Event]:
        rng = self.rng
        events: list[Event] = []
        places = [(board, instance) for board in boards for instance in board.devices()]
        for number in range(rng.choice((1, 2, 3, 4, 6))):
            pair = ("train", f"w-{number}")
            if self.chance("exporter_names", 0.1):
                pair = ("train", f"dcgm-exporter-{number}")
            if number and self.chance("reused_pods", 0.25):
                pair = ("train", f"w-{number - 1}")
            start = rng.choice((START - 5 * HOUR, self.instant(), self.instant()))
            stop = rng.choice((None, None, self.instant()))
            if stop is not None and stop <= start:
                start, stop = stop, start + 1
            with_events = rng.random() < 0.8
            chosen = rng.sample(places, min(len(places), rng.choice((0, 1, 1, 2, 3))))
            if not with_events:
                pair = rng.choice(pods)
            for board, instance in chosen:
                begin = start + rng.choice((0, 0, rng.randrange(-90_000, 240_000)))
                end = (stop or self.end + HOUR) + rng.choice((0, 0, rng.randrange(-60_000, 900_000)))
                board.labels.setdefault(instance, []).append((begin, end, pair))
                if self.chance("uninvited", 0.12):
                    guest = rng.choice([*pods, ("monitoring", "gpu-health")])
                    board.labels[instance].append((begin, end, guest))
            if with_events:
                events += self.lifecycle(number, pair, start, stop, chosen, places)
        for board, instance in places:
            if self.chance("label_noise", 0.2):
                begin = self.instant()
                length = rng.choice((60_000, 400_000, 1_200_000))
                pair = rng.choice([*pods, ("train", "w-0"), ("train", "w-1")])
                board.labels.setdefault(instance, []).append((begin, begin + length, pair))
        rng.shuffle(events)
        return events

    def lifecycle(
        self,
        number: int,
        pair: tuple[str, str],
        start: int,
        stop: int | None,
        chosen: list[tuple[Board, str]],
        places: list[tuple[Board, str]],
    ) -> list[Event]:
        rng = self.rng
        workload, tenant = f"wl-{number}", f"tenant-{number % 3}"
        count = rng.choice(
            [Fraction(1), Fraction(len(chosen) or 1), Fraction(1, 2), Fraction(3, 2), Fraction(2), Fraction(3)]
        )
        if self.chance("odd_counts", 0.15):
            count = rng.choice((Fraction("0.333333333"), Fraction("2.25"), Fraction("1.000000001"), Fraction("0.07")))
        klass = rng.choice(tuple(CLASSES))
        node = rng.choice((*NODES, *(board.node for board, _ in places), "node-elsewhere"))
        if self.unlabelled:
            # A36: classes of models that are there, and one that is not.
            cards = [board.card for board, _ in places]
            klass = rng.choice([PLATFORM.get(card, RAW[card]) for card in cards] * 3 + ["T4", "T4-half", "H100 80gb"])
        named = None
        if self.chance("named", 0.25):
            picked = rng.sample(places, min(len(places), rng.choice((1, 2))))
            if "named_gone" not in self.features:
                picked = [(board, instance) for board, instance in picked if len(board.layouts) == 1]
            named = tuple(board.uuid + (f"/{instance}" if instance else "") for board, instance in picked)
            named = (*named, "GPU-unknown") if rng.random() < 0.2 or not named else named
        namespace, pod = pair if named is None or rng.random() < 0.5 else (None, None)

        def event(suffix: str, at: int, before: str, after: str, **more: object) -> Event:
            fields: dict[str, object] = {
                "gpu_count": count,
                "placed_class": klass,
                "deployment_id": None if number % 4 == 3 else f"dep-{number}",
                "namespace": namespace,
                "pod": pod,
                "gpu_uuids": named,
                "node": node if at_node else None,
            }
            fields |= more
            return Event(f"ev-{number}-{suffix}", at, workload, tenant, after, before, **fields)  # type: ignore[arg-type]

        at_node = self.chance("nodes", 0.4)
        events = []
        if rng.random() < 0.5:
            events.append(event("a", start - rng.randrange(1, 600_000), "", "provisioning"))
        events.append(event("b", start, "provisioning", "running"))
        last = self.end if stop is None else stop
        if self.chance("re_placed", 0.3) and last - start > 10:
            at = rng.randrange(max(start, self.begin - 1000) + 1, max(last, self.begin + 1000))
            again = rng.choice((Fraction(1), Fraction(2), Fraction(1, 2)))
            moved = rng.choice((pair, (None, None), ("train", f"w-{number}b")))
            events.append(
                event(
                    "c",
                    at,
                    "running",
                    rng.choice(("running", "running", "paused")),
                    gpu_count=again,
                    placed_class=rng.choice(tuple(CLASSES)),
                    namespace=moved[0],
                    pod=moved[1],
                )
            )
        if self.chance("moves", 0.25) and last - start > 10:
            for turn in range(rng.choice((1, 1, 2))):
                at = rng.randrange(max(start, self.begin - 1000) + 1, max(last, self.begin + 1000))
                moved_to: dict[str, object] = {"tenant_id": f"tenant-{rng.randrange(3)}"}
                if rng.random() < 0.4:
                    moved_to["deployment_id"] = rng.choice((None, "dep-9", workload))
                if rng.random() < 0.4:
                    moved_to["gpu_count"] = rng.choice((Fraction(1), Fraction(1, 2)))
                events.append(replace(event(f"m{turn}", at, "running", "running"), **moved_to))  # type: ignore[arg-type]
        if stop is not None:
            events.append(event("d", stop, "running", rng.choice(("stopped", "failed"))))
            if rng.random() < 0.3:
                events.append(event("e", stop + rng.choice((0, 1, 1_200_000)), "stopped", "running"))
        if self.chance("faulty_events", 0.3):
            events.append(events[0])
            events.append(replace(rng.choice(events), gpu_count=Fraction(5)))
            events.append(event("f", self.instant(), "provisioning", "running", gpu_count=Fraction(0)))
            events.append(event("g", self.instant(), "running", "stopped"))
            events.append(event("h", self.end + 48 * HOUR + rng.choice((300_000, 300_001)), "stopped", "deleted"))
        return events

    # Readings ---------------------------------------------------------------------------------------------------------

    def spans(self, feature: str, probability: float, lengths: tuple[int, ...]) -> list[tuple[int, int]]:
        """A few spans of time in which something is wrong."""
        found = []
        for _ in range(self.rng.choice((1, 1, 2))):
            begin = self.instant()
            length = self.rng.choice(lengths)
            if self.chance(feature, probability):
                found.append((begin, begin + length))
        return found

    def samples(self, board: Board) -> list[Sample]:
        rng = self.rng
        outages = self.spans("outages", 0.4, (20_000, 60_000, 150_000, 600_000, 1_500_000))
        outages += self.spans("long_outages", 0.2, (5_000_000, 8_000_000, 20_000_000))
        outages += [(boot - rng.choice((20_000, 60_000, 90_000)), boot) for boot in board.boots]
        outages += [(self.instant(), self.end + 2 * DAY) for _ in range(1) if self.chance("vanished", 0.12)]
        faults = self.faults(board)
        churn = self.instant() if self.chance("churn", 0.3) else None
        upgrade = self.instant() if self.chance("old_names", 0.15) else 0
        resets = [self.instant() for _ in range(2) if self.chance("counter_faults", 0.3)]
        jumps = [self.instant() for _ in range(1) if self.chance("counter_faults", 0.15)]
        stuck = self.spans("stuck_counter", 0.1, (60_000, 119_000, 180_000, 1_200_000, 10 * HOUR))
        honor = rng.random() < 0.5
        drawn = 0 if self.chance("stuck_counter", 0.1) else rng.randrange(30, 400)
        watts, counter, previous = Fraction(drawn), rng.randrange(10**6, 10**9), None
        told = counter
        found: list[Sample] = []
        for scrape, jobs in self.scrapes(board):
            jitter = rng.choice((0, 0, 1, 3, 40))
            at = scrape + (jitter if board.offset else 0)
            if any(a <= at < b for a, b in outages):
                continue
            if drawn:
                watts = max(Fraction(5), watts + Fraction(rng.randrange(-300, 301), 10))
            watts = min(watts, Fraction(CAPS[board.card]))
            if previous is not None:
                counter += int(watts * (at - previous)) + (rng.randrange(-50, 50) if drawn else 0)
            if any(previous is not None and previous < t <= at for t in resets):
                counter = rng.randrange(10**5)
            if any(previous is not None and previous < t <= at for t in jumps):
                counter += 10**9
            previous = at
            told = told if any(a <= at < b for a, b in stuck) else counter
            bad = any(a <= at < b for a, b in faults.garbage)
            for job, skew in jobs:
                for instance, profile in board.layout(at):
                    labelled = self.labelled(board, instance, at, faults)
                    base = {
                        "UUID": board.uuid_at(at),
                        "modelName": faults.spelling(at, RAW[board.card]),
                        "Hostname": board.node,
                        "gpu": board.uuid[-1],
                        "job": job,
                        "instance": f"{board.node}:{9400 if job == 'job-1' else 9500}",
                    }
                    if instance:
                        base |= {"GPU_I_ID": instance} | ({"GPU_I_PROFILE": profile} if profile else {})
                    if churn is not None and at >= churn:
                        base |= {"driver": "2", "Hostname": "node-moved"}
                    if any(a <= at < b for a, b in faults.no_uuid):
                        del base["UUID"]
                    for metric in (PROF, UTIL, MEMORY, POWER, ENERGY):
                        if metric in faults.never or any(a <= at < b for a, b in faults.missing[metric]):
                            continue
                        if instance and metric == UTIL:
                            continue
                        value = self.value(metric, board, watts, told)
                        if bad and rng.random() < 0.5:
                            value = self.bad_value(metric)
                        seen = [] if job in faults.jobs_without_pods else labelled
                        for pair, number in self.rows(board, metric, seen, value):
                            labels = {**base, **self.group(pair, honor, faults, at)}
                            if at < upgrade:
                                labels = {OLD_LABELS.get(label, label): text for label, text in labels.items()}
                            name = OLD_NAMES[metric] if at < upgrade else metric
                            found.append(Sample(name, labels, at + skew, number))
        return found

    def faults(self, board: Board) -> Faults:
        """What is wrong with a board's rows, and when."""
        rng = self.rng
        missing = {
            metric: self.spans("absent", 0.2, (120_000, 600_000, 10 * HOUR))
            for metric in (PROF, UTIL, MEMORY, POWER, ENERGY)
        }
        never = {metric for metric in (PROF, UTIL, MEMORY, POWER, ENERGY, ENERGY) if self.chance("absent", 0.2)}
        if not self.chance("mixed_util", 0.3):
            never.add(rng.choice((PROF, UTIL)))
        raw = RAW[board.card]
        other = rng.choice((raw.replace(" ", "-"), raw.lower(), raw.replace(" ", "_"), PLATFORM.get(board.card, raw)))
        other = rng.choice((other, other, other, "Some Other GPU", ""))
        return Faults(
            never=never,
            missing=missing,
            garbage=self.spans("rejected", 0.3, (60_000, 300_000)),
            no_labels={
                instance: self.spans("drops", 0.4, (60_000, 240_000, 600_000, 900_000)) for instance in board.devices()
            },
            copies_lost=self.spans("missing_copies", 0.2, (300_000, 1_200_000)),
            no_uuid=self.spans("no_uuid", 0.1, (60_000, 600_000, 10 * HOUR)),
            two_pods=self.spans("two_pods", 0.1, (60_000, 600_000, 10 * HOUR)),
            respelled=[(*span, other) for span in self.spans("spellings", 0.15, (300_000, 1_800_000, 10 * HOUR))],
            jobs_without_pods={"job-2"} if self.chance("two_intervals", 0.3) else set(),
            container="exporter" if self.chance("exporter_names", 0.3) else "main",
        )

    def scrapes(self, board: Board) -> list[tuple[int, list[tuple[str, int]]]]:
        """The instants at which the board is read, and by which jobs (with their skew)."""
        rng = self.rng
        jobs = [("job-1", 0)]
        if self.chance("two_jobs", 0.2):
            jobs.append(("job-2", rng.choice((0, 0, 1, 4_321, board.scrape // 2))))
        first = self.begin // board.scrape * board.scrape + board.offset
        found = [(at, jobs) for at in range(first, self.end, board.scrape)]
        interval = rng.choice((self.window * 1000, 30_000, 60_000, 75_000, 120_000, 600_000))
        offset = rng.choice((board.offset + 7_000, rng.randrange(interval)))
        if self.chance("two_intervals", 0.2):
            interval = max(interval, self.window * 1000)
            start = self.begin + offset % interval
            found += [(at, [("job-2", 0)]) for at in range(start, self.end, interval)]
        if self.chance("far_readings", 0.15):
            found.append((self.begin - rng.choice((3 * HOUR, 23 * HOUR, 26 * HOUR)) + rng.randrange(100_000), jobs))
        if self.chance("far_readings", 0.15):
            found.append((self.end + rng.choice((HOUR, 5 * HOUR, 23 * HOUR, 26 * HOUR)) + rng.randrange(100_000), jobs))
        return sorted(found)

    def labelled(self, board: Board, instance: str, at: int, faults: Faults) -> list[tuple[str, str]]:
        """The pods that the exporter names on a device."""
        if self.unlabelled or any(a <= at < b for a, b in faults.no_labels[instance]):
            return []
        found = sorted({pair for begin, end, pair in board.labels.get(instance, ()) if begin <= at < end})
        if any(a <= at < b for a, b in faults.copies_lost) or (len(found) > 1 and "shared_labels" not in self.features):
            found = found[:1]
        return [self.rng.choice(found)] if len(found) > 1 and board.mode == "flips" else found

    def rows(
        self, board: Board, metric: str, labelled: list[tuple[str, str]], value: float
    ) -> list[tuple[tuple[str, str] | None, float]]:
        """The rows of one device and metric: a copy for each pod, or the device's and one for each process (A19)."""
        if board.mode == "beside" and labelled:
            return [(None, value), *((pair, value) for pair in labelled)]
        if board.mode != "processes" or not labelled or metric not in {UTIL, MEMORY}:
            return [(pair, value) for pair in labelled] or [(None, value)]
        rows: list[tuple[tuple[str, str] | None, float]] = [(None, value)]
        usable = 0 <= value < 1e9
        share = 0.0 if self.rng.random() < 0.1 else 1 / len(labelled)
        return rows + [(pair, float(int(value * share * self.rng.random())) if usable else value) for pair in labelled]

    def group(self, pair: tuple[str, str] | None, honor: bool, faults: Faults, at: int) -> dict[str, str]:
        """The labels of a row as Prometheus stores them (A8)."""
        exporter = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x", "container": "exporter"}
        if pair is None:
            return exporter if honor else {}
        box = faults.container
        if any(a <= at < b for a, b in faults.two_pods):
            other = {"namespace": "other", "pod": "pod-9", "container": "main"}
            return {**other, "exported_namespace": pair[0], "exported_pod": pair[1], "exported_container": box}
        if honor:
            return {**exporter, "exported_namespace": pair[0], "exported_pod": pair[1], "exported_container": box}
        return {"namespace": pair[0], "pod": pair[1], "container": box}

    def value(self, metric: str, board: Board, watts: Fraction, counter: int) -> float:
        rng = self.rng
        if metric == PROF:
            return rng.randrange(0, 1_000_001) / 1_000_000 if rng.random() < 0.5 else rng.randrange(0, 101) / 100
        if metric == UTIL:
            return float(rng.randrange(0, 101))
        if metric == MEMORY:
            return float(rng.randrange(0, MEMORY_MIB[board.card]))
        if metric == POWER:
            return float(watts)
        return float(counter - rng.choice((0, 0, 0, 300)))

    def bad_value(self, metric: str) -> float:
        rng = self.rng
        high = {PROF: 1.000001, UTIL: 101.0, MEMORY: 81_921.0, POWER: 1050.5, ENERGY: 9.3e18}[metric]
        return rng.choice(
            (float("nan"), float("inf"), float("-inf"), -1.0, 140737488355328.0, 2147483640.0, 9.3e18, high)
        )
