"""Jobs: functions from one range to a result with its receipt. They do not know where they run."""
