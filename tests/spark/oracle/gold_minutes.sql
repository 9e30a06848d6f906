FROM figures(60000, 60)
