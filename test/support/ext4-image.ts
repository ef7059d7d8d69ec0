/**
 * A file system of its own for a test: an ext4 image in a file, mounted through a loop device. It can be filled up, and it
 * can lose its power: the file system is shut down without writing out anything that was not synced, journal included, and
 * then mounted again as after a reboot. Needs root (`describeWith(["mkfs.ext4", "loop-mount"], ...)`).
 */
import { mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach } from "vitest";
import { run, runOk } from "./subprocess.js";

/** ioctl EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH. */
const SHUT_DOWN = `
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(fd, 0x8004587d, struct.pack("I", 2))
`;

const SYSTEM_PATH = { ...process.env, PATH: `${process.env["PATH"] ?? ""}:/usr/sbin:/sbin` };

export class Ext4Image {
  readonly mountPoint: string;
  private readonly scratch: string;
  private readonly image: string;
  private mounted = false;

  private constructor(scratch: string) {
    this.scratch = scratch;
    this.image = join(scratch, "image");
    this.mountPoint = join(scratch, "mount");
  }

  static async create(mebibytes: number): Promise<Ext4Image> {
    const made = new Ext4Image(mkdtempSync(join(tmpdir(), "leasehold-ext4-")));
    mkdirSync(made.mountPoint);
    writeFileSync(made.image, "");
    truncateSync(made.image, mebibytes * 1_048_576);
    await runOk("mkfs.ext4", ["-q", "-F", "-m", "0", made.image], { env: SYSTEM_PATH });
    await made.mount();
    return made;
  }

  /** The journal is committed every 300 s instead of every 5, so that nothing becomes durable but by a sync. */
  async mount(): Promise<void> {
    await runOk("mount", ["-o", "loop,commit=300", this.image, this.mountPoint], { env: SYSTEM_PATH });
    this.mounted = true;
  }

  /** Drops everything that was not synced; every later call on the file system fails. */
  async losePower(): Promise<void> {
    await runOk("/usr/bin/python3", ["-c", SHUT_DOWN, this.mountPoint]);
  }

  async unmount(): Promise<void> {
    if (!this.mounted) return;
    await runOk("umount", [this.mountPoint], { env: SYSTEM_PATH });
    this.mounted = false;
  }

  async dispose(): Promise<void> {
    if (this.mounted) await run("umount", ["-l", this.mountPoint], { env: SYSTEM_PATH });
    rmSync(this.scratch, { recursive: true, force: true });
  }
}

/** A maker of images that are unmounted and removed after each test. Call it before `useServers`, so that servers end first. */
export function useExt4Images(): (mebibytes: number) => Promise<Ext4Image> {
  const images: Ext4Image[] = [];
  afterEach(async () => {
    await Promise.all(images.splice(0).map(async (image) => image.dispose()));
  });
  return async (mebibytes) => {
    const image = await Ext4Image.create(mebibytes);
    images.push(image);
    return image;
  };
}
