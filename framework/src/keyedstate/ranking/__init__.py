"""The rows of a key that are first in an order, by columns: deduplication.

::

    keyed(bids, "bidder", "auction", uid="latest").deduplicate(keep="last", by="date_time")
"""

from keyedstate.ranking.builder import RankableRows, deduplicate
from keyedstate.ranking.deduplication import Deduplication

__all__ = ["Deduplication", "RankableRows", "deduplicate"]
