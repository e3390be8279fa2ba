"""The stages from a corpus to record files; each writes files that depend only on its task.

1. `tokenizing` reads byte ranges of the input and writes runs: documents as token ids, sorted by key, a hash
   of the document's name.
2. `buckets` selects the held-out documents and the buckets, which are ranges of keys, from the counts of all
   runs.
3. `packed_rows` and `google_rows` make the rows of the documents of a bucket and write one record file.
4. `shards` copies an equal share of all rows from these files into one shard.
"""
