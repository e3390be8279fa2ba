"""What the gate records: programs, parameters, records, runs and conversions of small models.

Runs and conversions go through the command line, so that they do not depend on how the code is laid out.
"""
