"""The rows of a key that are first in an order, by columns: deduplication and top-n.

::

    keyed(bids, "bidder", "auction", uid="latest").deduplicate(keep="last", by="date_time")
    keyed(bids, "auction", uid="top").top_n(10, by="price")
"""

from keyedstate.ranking.builder import RankableRows, deduplicate, top_n
from keyedstate.ranking.deduplication import Deduplication
from keyedstate.ranking.top_n import TopN
from keyedstate.ranking.window_top_n import WindowTopN

__all__ = ["Deduplication", "RankableRows", "TopN", "WindowTopN", "deduplicate", "top_n"]
