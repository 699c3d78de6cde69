"""Which form the values of a topic have: JSON, or Avro with the schemas that were given or the registry's. Owns the
choice; what a topic's readers learn about schemas is kept for the next reader of the process."""

from __future__ import annotations

import os
from functools import lru_cache

from headrace.log.kafka.catalog import Entry
from headrace.log.kafka.settings import Kafka
from headrace.log.kafka.values import Form, JsonForm, TextForm
from headrace.log.settings import Avro

__all__ = ["form_of"]

JSON, TEXT = JsonForm(), TextForm()


def form_of(entry: Entry, settings: Kafka) -> Form:
    if entry.texts:
        return TEXT
    return JSON if entry.avro is None else _avro_form(os.getpid(), entry.avro, settings)


@lru_cache(256)
def _avro_form(_pid: int, avro: Avro, settings: Kafka) -> Form:
    from headrace.log.kafka.forms.avro import AvroForm, Schemas
    from headrace.log.kafka.forms.registry import registry_of

    return AvroForm(Schemas(dict(avro.schemas), registry_of(settings)))
