import { closeSync, fsyncSync, linkSync, openSync, renameSync, unlinkSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import { StoreError } from "../store.js";

/**
 * Small files that must be there whole or not at all, whatever happens to the machine meanwhile: written under a temporary name,
 * synced, renamed, and the directory synced.
 */

export interface RenameSteps {
  beforeRename?(): void;
  afterRename?(): void;
}

/** Replaces `path` atomically and durably. */
export function replaceFile(path: string, content: string, steps: RenameSteps = {}): void {
  const temporary = writeTemporary(path, content);
  steps.beforeRename?.();
  renameSync(temporary, path);
  steps.afterRename?.();
  syncDirectory(dirname(path));
}

/** Creates `path` durably; false when it is there already. */
export function createFile(path: string, content: string): boolean {
  const temporary = writeTemporary(path, content);
  try {
    linkSync(temporary, path);
  } catch (error) {
    if (errnoOf(error) === "EEXIST") return false;
    throw error;
  } finally {
    unlinkSync(temporary);
  }
  syncDirectory(dirname(path));
  return true;
}

export function syncDirectory(path: string): void {
  const fd = openSync(path, "r");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** `ENOSPC`, `EACCES`, ...; empty when the error is of another kind. */
export function errnoOf(error: unknown): string {
  return error instanceof Error && "code" in error && typeof error.code === "string" ? error.code : "";
}

/** Runs file operations; whatever the system refuses becomes StoreError `unusable` with its text. */
export function usable<T>(what: string, operations: () => T): T {
  try {
    return operations();
  } catch (error) {
    if (error instanceof StoreError || errnoOf(error) === "") throw error;
    throw new StoreError("unusable", `${what}: ${error instanceof Error ? error.message : String(error)}`);
  }
}

function writeTemporary(path: string, content: string): string {
  const temporary = `${path}.${process.pid}.tmp`;
  const fd = openSync(temporary, "w", 0o600);
  try {
    writeFileSync(fd, content, "latin1");
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
  return temporary;
}
