"""A plan to look at: one page of HTML that needs no network, drawn by Bokeh.

view      the figures that the page shows
page      the page: charts, lists, and their template and stylesheet
"""
