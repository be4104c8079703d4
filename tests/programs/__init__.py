"""Programs that tests run in interpreters of their own.

Each file runs as a script: it takes its parameters from sys.argv, and imports files of its folder
by their names.
"""
