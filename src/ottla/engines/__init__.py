"""Where jobs run: in this process (`local`) or on Spark (`spark`). An engine takes ranges and does not know the job."""
