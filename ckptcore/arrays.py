"""Arrays in and out of databases: the names that the rest of the core uses.

`array_spec` says how arrays lie in a database, `array_writer` writes one process's database,
`array_merge` makes one view of all of them, `array_reader` reads boxes from that view.
"""

from ckptcore.array_merge import check_merged, merge, merged_keys
from ckptcore.array_reader import ArrayReader
from ckptcore.array_spec import StoredArray
from ckptcore.array_writer import DatabaseWriter

__all__ = ["ArrayReader", "DatabaseWriter", "StoredArray", "check_merged", "merge", "merged_keys"]
