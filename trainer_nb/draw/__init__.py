"""Charts, tables and pictures of values, and the cells that show them. These names are for other subpackages"""
from .page import (
    ALARM, COLORS, GREY, RAW, SIZE, Rich, Shown, attended_kernel, blank_figure, cell_thread, current_cell,
    html_img, html_of, html_table, lost_widget, marimo_outputs, new_figure, reaches, running_shell, show_bundle, show_live,
    text_table, widget_view
)
from .curve import Envelope, smooth
from .chart import Chart, Line, Panel, evenly, limits, needs_log
from .plot import Plot, PlotData, is_rate, thinned
