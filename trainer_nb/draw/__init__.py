"""Charts, tables and pictures of values, and the cells that show them. These names are for other wings"""
from .tables import Rich, html_img, html_table, text_table
from .cells import (
    attended_kernel, cell_thread, close_widgets, current_cell, marimo_outputs, marimo_view, reaches, running_shell,
    show_bundle, widget_view
)
from .figures import ALARM, COLORS, GREY, INK, RAW, SIZE, blank_figure, new_figure
from .axes import labels, limits, needs_log, ticks
from .smoothing import smooth
from .envelope import Bin, Envelope
from .panels import LEADING, Line, Panel, legend_rows
from .charts import Chart, beside
