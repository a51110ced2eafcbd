"""The rules of replication as pure state: input in, work out.

commit_point    how far the log is committed
"""
