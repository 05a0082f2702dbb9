"""The door to a webhook: one JSON document by POST, with limits and retries.

What belongs here: delivering. What does not: what is reported, and what was reported before. The address may hold a token:
no message shows more of it than the host.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests
from pydantic import SecretStr

from finops_pipeline.errors import SourceError

CONNECT_SECONDS, ANSWER_SECONDS = 3.0, 7.0
TRIES = 3
TRANSIENT = frozenset({408, 425, 429})


@dataclass(frozen=True)
class Webhook:
    """An address that takes JSON."""

    url: SecretStr
    pause_seconds: float = 0.5
    """before the second try; doubled before each further one"""

    @property
    def host(self) -> str:
        return urlsplit(self.url.get_secret_value()).hostname or "the webhook"

    def post(self, document: Mapping[str, Any], key: str) -> None:
        """Deliver a document; `key` goes along as `Idempotency-Key`, so that a receiver can recognise a repetition.

        Raises SourceError: transient after three tries that may go better later, else at once.
        """
        problem = ""
        for attempt in range(TRIES):
            if attempt:
                time.sleep(self.pause_seconds * 2 ** (attempt - 1))
            try:
                answer = requests.post(
                    self.url.get_secret_value(),
                    json=document,
                    headers={"Idempotency-Key": key},
                    timeout=(CONNECT_SECONDS, ANSWER_SECONDS),
                    allow_redirects=False,
                )
            except requests.RequestException as error:
                problem = type(error).__name__
                continue
            if answer.ok and not answer.is_redirect:
                return
            problem = f"HTTP {answer.status_code}"
            if answer.status_code < 500 and answer.status_code not in TRANSIENT:
                raise SourceError(f"FINOPS_WEBHOOK_URL: {self.host} refuses: {problem}", transient=False)
        raise SourceError(f"FINOPS_WEBHOOK_URL: {self.host} does not take it: {problem}", transient=True)
