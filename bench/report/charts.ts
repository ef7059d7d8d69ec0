import { BAD, COLOURS, Drawing, FAINT, GOOD, INK, linearScale, logScale, short, type Scale } from "./svg.js";

/** The three kinds of plot: grouped bars, curves over percentiles or time, and aims. */

export interface BarGroup {
  readonly label: string;
  /** One value per series; NaN for none. */
  readonly values: readonly number[];
}

/** Bars in groups, their values above them; `ratio` is written under a group when it is given. */
export function barChart(
  title: string,
  unit: string,
  series: readonly string[],
  groups: readonly (BarGroup & { readonly ratio?: string })[],
): string {
  const left = 70;
  const barWidth = 34;
  const groupWidth = Math.max(150, series.length * barWidth + 30);
  const width = Math.max(560, left + groups.length * groupWidth + 20);
  const extra = legendExtra(series, width - left);
  const height = 380 + extra;
  const bottom = height - 60;
  const drawing = new Drawing(width, height);
  drawing.text(left, 24, title, { size: 15, bold: true });
  legend(drawing, left, 44, series);
  const highest = Math.max(...groups.flatMap((group) => group.values.filter(Number.isFinite)));
  const y = linearScale(highest, bottom, 80 + extra);
  horizontalGrid(drawing, y, left, width - 20, unit);
  for (const [index, group] of groups.entries()) {
    const middle = left + groupWidth * (index + 0.5);
    const start = middle - (series.length * barWidth) / 2;
    for (const [which, value] of group.values.entries()) {
      if (!Number.isFinite(value)) continue;
      const x = start + which * barWidth;
      const hint = `${series[which] ?? ""}, ${group.label}: ${value}`;
      drawing.box(x + 2, y.at(value), barWidth - 4, bottom - y.at(value), colour(which), hint);
      drawing.text(x + barWidth / 2, y.at(value) - 4, short(value), { anchor: "middle", size: 10 });
    }
    drawing.text(middle, bottom + 18, group.label, { anchor: "middle", size: 11 });
    if (group.ratio !== undefined) {
      drawing.text(middle, bottom + 36, group.ratio, { anchor: "middle", size: 11, bold: true });
    }
  }
  return drawing.toString();
}

export interface Curve {
  readonly label: string;
  readonly points: readonly (readonly [number, number])[];
}

/** Latency over percentiles: to the right each step is ten times rarer. Both axes are logarithmic. */
export function percentileChart(title: string, curves: readonly Curve[]): string {
  const [width, left] = [640, 70];
  const labels = curves.map((curve) => curve.label);
  const extra = legendExtra(labels, width - left);
  const height = 400 + extra;
  const bottom = height - 50;
  const right = width - 30;
  const drawing = new Drawing(width, height);
  drawing.text(left, 24, title, { size: 15, bold: true });
  legend(drawing, left, 44, labels);
  const shown = [50, 75, 90, 95, 99, 99.5, 99.9, 99.99];
  const x = logScale(0.01, 50, right, left);
  const positions = (percentile: number): number => x.at(100 - percentile);
  const values = curves.flatMap((curve) => curve.points.filter(([at]) => shown.includes(at)).map(([, ms]) => ms));
  const y = logScale(Math.min(...values), Math.max(...values), bottom, 70 + extra);
  horizontalGrid(drawing, y, left, right, "ms");
  for (const percentile of [50, 90, 99, 99.9, 99.99]) {
    drawing.line(positions(percentile), 70 + extra, positions(percentile), bottom, FAINT);
    drawing.text(positions(percentile), bottom + 18, `${percentile} %`, { anchor: "middle", size: 11 });
  }
  drawing.text((left + right) / 2, bottom + 38, "share of requests answered within", { anchor: "middle", size: 11 });
  for (const [which, curve] of curves.entries()) {
    const points = curve.points.filter(([percentile]) => shown.includes(percentile));
    drawing.path(
      points.map(([percentile, ms]) => [positions(percentile), y.at(ms)] as const),
      colour(which),
    );
    for (const [percentile, ms] of points) {
      drawing.dot(positions(percentile), y.at(ms), colour(which), `${curve.label}: ${percentile} % within ${ms} ms`);
    }
  }
  return drawing.toString();
}

export interface Panel {
  readonly label: string;
  readonly unit: string;
  readonly logarithmic: boolean;
  readonly curves: readonly Curve[];
}

/** Curves over seconds, one panel below the other with the same time axis. A dashed line marks second 0. */
export function timeChart(title: string, panels: readonly Panel[]): string {
  const [width, left, panelHeight] = [720, 70, 200];
  const right = width - 30;
  const height = 60 + panels.length * panelHeight + 30;
  const drawing = new Drawing(width, height);
  drawing.text(left, 24, title, { size: 15, bold: true });
  const seconds = panels.flatMap((panel) => panel.curves.flatMap((curve) => curve.points.map(([at]) => at)));
  const first = Math.min(0, ...seconds);
  const last = Math.max(1, ...seconds);
  const x = (at: number): number => left + ((at - first) / (last - first)) * (right - left);
  for (const [index, panel] of panels.entries()) {
    const top = 60 + index * panelHeight + 24;
    const bottom = 60 + (index + 1) * panelHeight - 12;
    legend(
      drawing,
      left,
      top - 12,
      panel.curves.map((curve) => curve.label),
    );
    const values = panel.curves.flatMap((curve) => curve.points.map(([, value]) => value)).filter(Number.isFinite);
    const y = panel.logarithmic
      ? logScale(Math.max(0.01, Math.min(...values)), Math.max(...values), bottom, top)
      : linearScale(Math.max(...values), bottom, top);
    horizontalGrid(drawing, y, left, right, panel.unit);
    drawing.line(x(0), top, x(0), bottom, INK, 1, "4 3");
    for (const [which, curve] of panel.curves.entries()) {
      drawing.path(
        curve.points.map(([at, value]) => [x(at), y.at(value)] as const),
        colour(which),
      );
    }
  }
  const step = last - first > 40 ? 10 : last - first > 15 ? 5 : 1;
  for (let at = Math.ceil(first / step) * step; at <= last; at += step) {
    drawing.text(x(at), height - 22, `${at} s`, { anchor: "middle", size: 11 });
  }
  return drawing.toString();
}

export interface AimBar {
  readonly label: string;
  readonly text: string;
  /** 1 is the aim; more is better. */
  readonly share: number;
  readonly met: boolean;
}

/** One bar per aim, as a share of it, on a logarithmic scale: right of the line the aim is reached. */
export function aimChart(title: string, bars: readonly AimBar[]): string {
  const [width, left, rowHeight] = [1180, 560, 22];
  const right = width - 220;
  const height = 70 + bars.length * rowHeight + 30;
  const drawing = new Drawing(width, height);
  drawing.text(20, 24, title, { size: 15, bold: true });
  const [low, high] = [0.25, 16];
  const x = (share: number): number => {
    const within = Math.min(high, Math.max(low, share));
    return left + (Math.log2(within / low) / Math.log2(high / low)) * (right - left);
  };
  for (const share of [0.25, 0.5, 1, 2, 4, 8, 16]) {
    drawing.line(x(share), 50, x(share), height - 30, share === 1 ? INK : FAINT, share === 1 ? 2 : 1);
    drawing.text(x(share), height - 14, share === 1 ? "aim" : `${share}x`, { anchor: "middle", size: 11 });
  }
  for (const [index, bar] of bars.entries()) {
    const y = 58 + index * rowHeight;
    drawing.text(left - 8, y + 11, bar.label, { anchor: "end", size: 11 });
    const [from, to] = bar.share >= 1 ? [x(1), x(bar.share)] : [x(bar.share), x(1)];
    drawing.box(from, y, Math.max(2, to - from), rowHeight - 8, bar.met ? GOOD : BAD, bar.text);
    drawing.text(right + 8, y + 11, bar.text, { size: 11 });
  }
  return drawing.toString();
}

/** Labels side by side or, where that is wider than the drawing, one below the other. */
function legend(drawing: Drawing, left: number, top: number, labels: readonly string[]): void {
  const stacked = isStacked(labels, drawing.width - left);
  let [x, y] = [left, top];
  for (const [which, label] of labels.entries()) {
    drawing.box(x, y - 10, 12, 12, colour(which));
    drawing.text(x + 17, y, label, { size: 12 });
    if (stacked) y += LEGEND_LINE;
    else x += legendWidth(label);
  }
}

const LEGEND_LINE = 16;

function legendWidth(label: string): number {
  return 34 + label.length * 6.6;
}

function isStacked(labels: readonly string[], width: number): boolean {
  return labels.reduce((sum, label) => sum + legendWidth(label), 0) > width;
}

/** How much lower a chart begins than below a legend of one line. */
function legendExtra(labels: readonly string[], width: number): number {
  return isStacked(labels, width) ? (labels.length - 1) * LEGEND_LINE : 0;
}

function horizontalGrid(drawing: Drawing, y: Scale, left: number, right: number, unit: string): void {
  for (const tick of y.ticks) {
    drawing.line(left, y.at(tick), right, y.at(tick), FAINT);
    drawing.text(left - 6, y.at(tick) + 4, short(tick), { anchor: "end", size: 10 });
  }
  drawing.text(left - 6, y.at(y.ticks.at(-1) ?? 0) - 12, unit, { anchor: "end", size: 10 });
}

function colour(which: number): string {
  return COLOURS[which % COLOURS.length] ?? INK;
}
