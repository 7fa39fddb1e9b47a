"""A topic that lives through a random history (it is written to, grows, expires, is cut, compacted, deleted and created
again), and whatever follows it: judged by what was in the logs.

To plug in another reader, write a `Follower` for it (`following.py` says what that is) and give it to `history.live`.
"""
