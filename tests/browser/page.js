// What lab.py calls in a page of JupyterLab or Notebook 7; `jupyterapp` is the app, k the number of a cell
window.nb = {
  panel: () => [...jupyterapp.shell.widgets('main')].find(o => o.sessionContext && o.content?.widgets),
  model: () => nb.panel().content.model.sharedModel,
  kernel: () => nb.panel().sessionContext.session?.kernel,
  cell: k => nb.panel().content.widgets[k],
  area: k => nb.cell(k).node.querySelector('.jp-Cell-outputArea'),
  parts: k => [...nb.area(k)?.querySelectorAll('.jp-OutputArea-child') || []],

  ready: busy => {
    const p = window.jupyterapp && nb.panel();
    return p && p.context.isReady && p.sessionContext.isReady && nb.kernel() && !document.getElementById('jupyterlab-splash')
      && (busy || nb.kernel().status == 'idle');
  },
  cells: sources => nb.model().transact(() => {
    nb.model().deleteCellRange(0, nb.model().cells.length);
    nb.model().insertCells(0, sources.map(source => ({cell_type: 'code', source, metadata: {}, outputs: [], execution_count: null})));
  }),
  select: k => {
    nb.panel().content.deselectAll();
    nb.panel().content.activeCellIndex = k;
  },
  start: k => {
    nb.done = nb.died = false;
    nb.panel().sessionContext.statusChanged.connect((_, s) => { nb.died ||= s == 'dead' || s == 'autorestarting' });
    nb.select(k);
    jupyterapp.commands.execute('notebook:run-cell').finally(() => { nb.done = true });
  },
  idle: () => {     // is over what was started, also before the page was loaded?
    if (nb.died) throw Error('the kernel died');
    return nb.done !== false && nb.kernel().status == 'idle';
  },

  still_s: k => {   // seconds since the text of a cell's output was last seen to change
    const text = nb.area(k)?.innerText, now = Date.now();
    if (nb.stands?.text !== text) nb.stands = {text, since: now};
    return (now - nb.stands.since)/1000;
  },

  pointed: () => {      // the text under the mouse, over a picture
    const i = document.querySelector('.tnb-hover>i:hover');
    return i && getComputedStyle(i, '::after').content.replaceAll('"', '');
  },
  painted: () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)))),
  look: k => {
    const a = nb.area(k), parts = nb.parts(k), unseen = o => !o.clientHeight || [...o.querySelectorAll('img')].some(i => !i.complete || !i.naturalWidth);
    return {time_s: Date.now()/1000, height: a?.clientHeight || 0, n: parts.length, waits: parts.some(unseen), svg: !!a?.querySelector('.jp-OutputArea-output img[src^="data:image/svg"]') && / as of \d/.test(a.innerText), rows: !!a?.querySelector('td'), bar: a?.querySelector('.jp-RenderedHTMLCommon div[style*="%;height:8px"]')?.style.width, text: a?.innerText};
  },
  watch: k => {
    const looks = nb.looks = [];
    const frame = () => { if (nb.looks === looks) { looks.push(nb.look(k)); requestAnimationFrame(frame) } };
    requestAnimationFrame(frame);
  },
  seen: () => {
    const looks = nb.looks;
    nb.looks = null;
    return looks;
  },
  contrasts: k => {     // of each element of the output that has text of its own
    const has_text = n => n.getClientRects().length && [...n.childNodes].some(o => o.nodeType == 3 && /\w/.test(o.data));
    return nb.contrasts_of([...nb.area(k).querySelectorAll('*')].filter(has_text));
  },
  contrasts_of: nodes => {      // [text, contrast to what is behind it, as in WCAG 2]
    const rgba = s => { const [r, g, b, a = 1] = s.match(/[\d.]+/g).map(Number); return [r, g, b, a] };
    const over = (top, under) => [0, 1, 2].map(i => top[3]*top[i] + (1 - top[3])*under[i]);
    const behind = n => {
      const c = n ? rgba(getComputedStyle(n).backgroundColor) : [255, 255, 255, 1];
      return c[3] == 1 ? c : over(c, behind(n.parentElement));
    };
    const luminance = c => {
      const [r, g, b] = c.map(v => (v /= 255) <= .04045 ? v/12.92 : ((v + .055)/1.055)**2.4);
      return .2126*r + .7152*g + .0722*b;
    };
    return nodes.map(n => {
      const style = getComputedStyle(n), under = behind(n), ink = over(rgba(n instanceof SVGElement ? style.fill : style.color), under);
      const [dark, light] = [luminance(ink), luminance(under)].sort((a, b) => a - b);
      return [n.textContent.trim().slice(0, 40), (light + .05)/(dark + .05)];
    });
  },
};
