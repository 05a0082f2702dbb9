"""Run any bundle folder through the reference: `python -m tests.reference.run DIR [--out DIR]`.

Prints the rows of every file (or writes them), the statements, findings and flags; with an `expected` folder in the
bundle also how they differ. What does NOT belong here: any rule.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .cases import COLUMNS, differences, hours_of, run_bundle, toml_of
from .reference import hour_text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    run = run_bundle(options.bundle)
    texts = {name: run.text(name) for name in COLUMNS}
    texts["gpu_allocation.json"] = json.dumps(run.statements, indent=2, sort_keys=True) + "\n"
    for name, text in texts.items():
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / name).write_text(text, encoding="utf-8")
        else:
            sys.stdout.write(f"== {name}\n{text}")
    for hour, start in zip(run.hours, hours_of(toml_of(options.bundle)), strict=True):
        for name, subject in sorted(hour.findings):
            sys.stdout.write(f"finding {hour_text(start)} {name}: {subject}\n")
        over = {model: f"{ms / 1000:.3f} s" for model, ms in hour.overpriced.items()}
        sys.stdout.write(f"hour {hour_text(start)} provisional={str(hour.provisional).lower()} overpriced={over}\n")
    different = differences(options.bundle, run) if (options.bundle / "expected").exists() else []
    sys.stdout.write("\n".join(different) + "\n" if different else "")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
