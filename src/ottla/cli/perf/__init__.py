"""`ottla perf`: performance tests on a running cluster, with a report as text, JSON and a page with plots."""
