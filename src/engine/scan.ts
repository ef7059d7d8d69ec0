import type { RowAllocator } from "./columns.js";

/**
 * The cursor of SCAN and LEASE.SCAN.
 *
 * A scan walks the rows of a table from its end to its beginning; the cursor is the number of rows still ahead, 0 at the end. A row
 * keeps its number for life, so what is there during the whole scan is met. Walking down, a scan never runs after rows that are
 * added meanwhile: it ends after at most as many rows as the table had at its start, whatever comes and goes. Something that went and
 * came again may be met twice, as in Redis.
 */

/** Rows looked at per row that counts: a table that has emptied is crossed quickly, and one call stays bounded. */
const EXAMINED_PER_COUNT = 16;

/**
 * Calls `meet` for rows until `count` of them were something to meet (`meet` returned true). Returns the next cursor.
 *
 * cursor: 0 begins; any other value is taken as far as the table goes, so a cursor that no call returned is harmless.
 */
export function scanRows(rows: RowAllocator, cursor: number, count: number, meet: (row: number) => boolean): number {
  const end = rows.rowsEnd;
  let row = cursor === 0 ? end : Math.min(cursor, end);
  let met = 0;
  for (let budget = count * EXAMINED_PER_COUNT; row > 0 && met < count && budget > 0; budget -= 1) {
    row = rows.skipUnused(row) - 1;
    if (row < 0) return 0;
    if (meet(row)) met += 1;
  }
  return row;
}
