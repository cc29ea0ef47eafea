"""The study of "Superposition Yields Robust Neural Scaling" (Liu, Liu, Gore, NeurIPS 2025, arXiv
2505.10465): its grids, its figures, its numbers, and what results say of its claims.

``experiments`` has the grids, ``published`` the paper's numbers, ``claims`` the verdicts on its
statements, ``estimates`` their intervals, ``figures`` the panels.
``studies/superposition_study.py`` is the command.
"""
