"""JSON Schemas of all that the command lines print as JSON, and of what runs write.

They are strict: what an output gains without its schema fails a test.
"""
