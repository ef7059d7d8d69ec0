/**
 * Just enough SVG for the plots of this benchmark: text, lines, boxes, axes. Each plot is one self-contained file on white,
 * legible in light and dark pages, in colours that people who see red and green alike can tell apart.
 */

export const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"] as const;
export const INK = "#222222";
export const FAINT = "#dddddd";
export const GOOD = "#009e73";
export const BAD = "#d55e00";

export class Drawing {
  readonly width: number;
  readonly #height: number;
  readonly #parts: string[] = [];

  constructor(width: number, height: number) {
    this.width = width;
    this.#height = height;
  }

  text(
    x: number,
    y: number,
    text: string,
    options: { anchor?: "start" | "middle" | "end"; size?: number; colour?: string; bold?: boolean } = {},
  ): void {
    const { anchor = "start", size = 12, colour = INK, bold = false } = options;
    const weight = bold ? ' font-weight="bold"' : "";
    this.#parts.push(
      `<text x="${n(x)}" y="${n(y)}" font-size="${size}" text-anchor="${anchor}" fill="${colour}"${weight}>${escaped(text)}</text>`,
    );
  }

  line(x1: number, y1: number, x2: number, y2: number, colour: string, width = 1, dash = ""): void {
    const dashes = dash === "" ? "" : ` stroke-dasharray="${dash}"`;
    this.#parts.push(
      `<line x1="${n(x1)}" y1="${n(y1)}" x2="${n(x2)}" y2="${n(y2)}" stroke="${colour}" stroke-width="${width}"${dashes}/>`,
    );
  }

  box(x: number, y: number, width: number, height: number, colour: string, hint = ""): void {
    const title = hint === "" ? "" : `<title>${escaped(hint)}</title>`;
    this.#parts.push(
      `<rect x="${n(x)}" y="${n(y)}" width="${n(Math.max(0, width))}" height="${n(Math.max(0, height))}" fill="${colour}">${title}</rect>`,
    );
  }

  path(points: readonly (readonly [number, number])[], colour: string): void {
    const joined = points.map(([x, y]) => `${n(x)},${n(y)}`).join(" ");
    this.#parts.push(`<polyline points="${joined}" fill="none" stroke="${colour}" stroke-width="2"/>`);
  }

  dot(x: number, y: number, colour: string, hint: string): void {
    this.#parts.push(
      `<circle cx="${n(x)}" cy="${n(y)}" r="3" fill="${colour}"><title>${escaped(hint)}</title></circle>`,
    );
  }

  toString(): string {
    return [
      `<svg xmlns="http://www.w3.org/2000/svg" width="${this.width}" height="${this.#height}" viewBox="0 0 ${this.width} ${this.#height}" font-family="system-ui, sans-serif">`,
      `<rect width="100%" height="100%" fill="#ffffff"/>`,
      ...this.#parts,
      "</svg>",
      "",
    ].join("\n");
  }
}

/** A scale from values to pixels, with the values at which to write a tick. */
export interface Scale {
  readonly ticks: readonly number[];
  at(value: number): number;
}

/** From 0 to at least `highest`, ticks at round numbers. */
export function linearScale(highest: number, fromPixel: number, toPixel: number): Scale {
  const top = highest > 0 && Number.isFinite(highest) ? highest : 1;
  const rough = top / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? rough;
  const ticks: number[] = [];
  for (let index = 0; index <= Math.ceil(top / step); index++) ticks.push(index * step);
  const end = ticks.at(-1) ?? top;
  return { ticks, at: (value) => fromPixel + (value / end) * (toPixel - fromPixel) };
}

/** Whole powers of ten around `lowest`..`highest`, both positive. */
export function logScale(lowest: number, highest: number, fromPixel: number, toPixel: number): Scale {
  const first = Math.floor(Math.log10(lowest));
  const last = Math.max(first + 1, Math.ceil(Math.log10(highest)));
  const ticks: number[] = [];
  for (let power = first; power <= last; power++) ticks.push(10 ** power);
  return {
    ticks,
    at: (value) =>
      fromPixel + ((Math.log10(Math.max(value, 10 ** first)) - first) / (last - first)) * (toPixel - fromPixel),
  };
}

/** A number as short as it can be told apart: 120k, 1.5M, 0.25. */
export function short(value: number): string {
  const size = Math.abs(value);
  if (size >= 1e6) return `${trimmed(value / 1e6)}M`;
  if (size >= 1e4) return `${trimmed(value / 1e3)}k`;
  return size >= 100 ? Math.round(value).toString() : trimmed(value);
}

function trimmed(value: number): string {
  return Number(value.toPrecision(3)).toString();
}

function n(pixels: number): string {
  return Number.isFinite(pixels) ? (Math.round(pixels * 10) / 10).toString() : "0";
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
