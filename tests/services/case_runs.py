"""Cases that have been run, for tests that ask what is left: a site with its lake and a real Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from finops_pipeline.commands.runner import run_hours
from finops_pipeline.resources.site import Site, open_site
from finops_pipeline.settings import load_settings
from tests.databases import Databases


@contextmanager
def ran(case: Path, home: Path, databases: Databases) -> Iterator[Site]:
    """The site of a bundle whose hours are computed and booked; its anchor file is under `home`."""
    settings = load_settings({"FINOPS_HOME": str(home), "EAI_DATABASE_URL": databases.fresh()})
    with open_site(settings, case) as site:
        assert site.source.span is not None
        with dg.DagsterInstance.ephemeral() as instance:
            run_hours(site, instance, *site.source.span)
        yield site
