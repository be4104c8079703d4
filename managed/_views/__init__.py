"""What notebooks and the command line show: tables, summaries and timelines. No policy."""
