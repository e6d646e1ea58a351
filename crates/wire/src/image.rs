//! What is the same in every cell, whoever builds its root: the launcher, or an engine like Docker's.

/// Top-level names that belong to the cell, whatever the image has there.
pub const OURS: [&str; 6] = ["proc", "sys", "dev", "tmp", "work", "run"];

/// What the `host` image takes from the top of the host's tree: everything but `/usr` comes from links into it, or (before the
/// merge of `/usr`) from directories beside it.
pub const HOST_NAMES: [&str; 7] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// The synthesised `/etc` of the `host` image: enough for name look-ups, nothing that tells about the host.
pub const ETC: [(&str, &str); 6] = [
    (
        "passwd",
        "root:x:0:0:root:/:/usr/sbin/nologin\ncell:x:1000:1000:cell:/work:/bin/sh\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    ),
    ("group", "root:x:0:\ncell:x:1000:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost cell\n::1 localhost\n"),
    ("hostname", "cell\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
    ("resolv.conf", ""),
];

/// Names at the top of a directory image. Each is a mount, in every cell, and in its evidence.
pub const MAX_NAMES: usize = 256;
