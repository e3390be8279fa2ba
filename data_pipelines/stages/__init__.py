"""The stages from a corpus to record files; each writes files that depend only on its task.

1. `tokenizing` reads byte ranges of the input and writes runs: documents as token ids, sorted by key.
2. `buckets` selects held-out documents and buckets, which are ranges of keys, from the counts of all runs.
3. `packed_rows` and `google_rows` make the rows of a bucket and write one record file.
   `build` then copies an equal number of rows from these files into each shard.
"""
