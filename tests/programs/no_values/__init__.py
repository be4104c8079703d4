"""Programs on devices without values: checks, and what runs with and without values count."""
