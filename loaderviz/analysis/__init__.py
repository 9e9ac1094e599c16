"""What a timeline says about its loop: the evidence, what to change (`advice`), and what a change gives (`what_if`)."""
