"""Charts, tables and pictures of values, and the cells that show them. These names are for other wings"""
from .tables import (
    ALARM, COLORS, GREY, RAW, SIZE, Rich, blank_figure, html_img, html_table, new_figure,
    text_table
)
from .cells import (
    attended_kernel, cell_thread, close_widgets, current_cell, marimo_outputs, marimo_view, reaches, running_shell,
    show_bundle, widget_view
)
from .panels import LEADING, Line, Panel, legend_rows, limits, needs_log
from .smoothing import Envelope, smooth
from .marks import evenly
from .charts import Chart
from .plot import Plot, PlotData, is_rate
