"""Tallies: how many records of a topic passed a tier in each time bucket, with their fingerprint.

`values` has the tallies themselves, `messages` their form in the audit topic, `slices` the way from record batches to
them, `session` what a running client has counted, `publishing` and `publisher` the way to the audit topic. What tallies
mean is the business of `ottla.audit`.
"""
