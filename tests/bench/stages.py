"""The hourly stages of a site, without Dagster."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from finops_pipeline.assets import allocation, events, usage
from finops_pipeline.assets.records import Reading
from finops_pipeline.assets.samples import Sampling
from finops_pipeline.assets.series import Landing
from finops_pipeline.resources.site import Site


@dataclass(frozen=True)
class Stages:
    """What the assets do for one cluster."""

    site: Site
    cluster: str

    def land(self, hours: Sequence[int]) -> None:
        Landing(self.site.lake, self.site.source, self.site.config).of(self.cluster, hours)

    def read(self, hours: Sequence[int]) -> None:
        Reading(self.site.lake, self.site.database, self.site.source, self.site.config).of(self.cluster, hours)

    def sample(self, hours: Sequence[int]) -> None:
        site = self.site
        sampling = Sampling(site.lake, site.database, site.config, self.cluster, site.source.now_ms())
        deque(sampling.all(hours), maxlen=0)

    def use(self, hour: int) -> None:
        site = self.site
        usage.use(site.lake, site.database, site.config, self.cluster, hour, site.source.now_ms())

    def price(self, hour: int) -> None:
        deque(allocation.price(self.site.lake, self.site.database, self.site.config, self.cluster, [hour]), maxlen=0)

    def book(self, hour: int) -> None:
        site = self.site
        events.book(site.lake, site.database, site.config, self.cluster, hour, site.source.now_ms(), "bench")
