"""Sums by group with numpy: for the sums that tasks add to gold, and for merging them with existing rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from casque.spark.sketch_arrays import Entries, packed


class Groups:
    """Groups rows of several parts by time, in any unit, and names."""

    def __init__(self, parts: Sequence[tuple[Any, Any]], names: Sequence[str]) -> None:
        codes = np.concatenate([np.zeros(0, np.int64), *(np.asarray(counts, np.int64) for counts, _ in parts)])
        shift = int(codes.min(initial=0))
        codes = codes - shift
        dictionaries = []
        for name in names:
            column = pa.chunked_array(
                [chunk for _, rows in parts for chunk in rows.column(name).chunks], type=pa.string()
            )
            encoded = column.combine_chunks().dictionary_encode()
            dictionaries.append(encoded.dictionary.to_pylist())
            # Null counts as a name, too.
            codes = codes * (len(encoded.dictionary) + 1) + (
                encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
            )
        different, group = np.unique(codes, return_inverse=True)
        self.size = len(different)
        sizes = [len(counts) for counts, _ in parts]
        self.of = np.split(group.reshape(-1), np.cumsum(sizes)[:-1]) if parts else []
        """For each part, the group of each of its rows."""
        kinds = math.prod(len(known) + 1 for known in dictionaries)
        self.names_of = different % kinds
        """A number for each group, equal for equal names."""
        self.names: dict[str, Any] = {}
        for name, known in reversed(list(zip(names, dictionaries, strict=True))):
            self.names[name] = pa.array([*known, None], pa.string()).take(pa.array(different % (len(known) + 1)))
            different = different // (len(known) + 1)
        self.counts = different + shift

    def sums(self, parts: Sequence[tuple[Any, Any]]) -> Any:
        total = np.zeros(self.size, np.int64)
        for group, values in parts:
            np.add.at(total, group, values)
        return total

    def largest(self, parts: Sequence[tuple[Any, Any]]) -> Any:
        found = np.zeros(self.size, np.int64)
        for group, values in parts:
            np.maximum.at(found, group, values)
        return found

    def sketches(self, entries: Sequence[Entries]) -> Any:
        """From groups, buckets and counts: a sketch for each group."""
        return packed(self.size, entries)
