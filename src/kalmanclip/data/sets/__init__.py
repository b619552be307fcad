"""The known data sets: one description each (`table`), and how their files on disk become views."""
