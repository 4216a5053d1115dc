"""The declared operators of the campaign: each with its query and the rows that it is to put out."""
