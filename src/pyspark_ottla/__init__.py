"""Lets Spark find the data source `ottla` by itself: it imports every installed module whose name begins so.

Only the class is here; `ottla.spark` says what it does. It must import without fail, since an error here would hide
the data sources of all other packages, too.
"""

from ottla.spark.source import OttlaSource as DefaultSource

__all__ = ["DefaultSource"]
