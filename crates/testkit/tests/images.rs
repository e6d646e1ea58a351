//! Images: whatever form they come in, the same files are in the cell; and whatever is wrong with one, the store stays as it was.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use casemate_testkit::image::{
    OCI_LAYER, Parts, digest, gzip, pack_layout, with_programs, write_layout, zstd,
};
use casemate_testkit::tar::{Header, Tar};
use common::{Done, Home, Running, binary, eventually, finish, is_root};
use rustix::process::Signal;
use serde_json::{Value, json};

const PROGRAMS: [&str; 4] = ["/bin/sh", "/bin/cat", "/bin/ls", "/bin/sleep"];

/// A root file system in which a shell runs.
fn rootfs() -> Tar {
    with_programs(Tar::new().directory("./"), &PROGRAMS)
        .directory("etc")
        .file("etc/motd", "from the image\n")
        .file_with_mode("etc/secret", "readable\n", 0o600)
        .symlink("etc/link", "motd")
        .hard_link("etc/same", "etc/motd")
}

/// What is under `images/`, but for what is always there: nothing of it may change when an import fails.
fn store(home: &Home) -> BTreeMap<PathBuf, (u32, u64, Vec<u8>)> {
    fn walk(dir: &Path, found: &mut BTreeMap<PathBuf, (u32, u64, Vec<u8>)>) {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let (path, meta) = (entry.path(), entry.metadata().unwrap());
            let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            if meta.is_dir() {
                walk(&path, found);
            }
            found.insert(path, (meta.mode(), meta.ino(), content));
        }
    }
    let mut found = BTreeMap::new();
    walk(&home.path().join("images/trees"), &mut found);
    let names = home.path().join("images/names.json");
    found.insert(names.clone(), (0, 0, fs::read(names).unwrap_or_default()));
    found
}

fn staged(home: &Home) -> Vec<PathBuf> {
    let entries = fs::read_dir(home.path().join("images/staging")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

impl Home {
    fn import(&self, bytes: impl AsRef<[u8]>, name: &str) -> Done {
        let path = self.write_beside("image.tar", bytes);
        self.casemate(&["image", "import", &path, "--name", name])
    }

    fn listed(&self) -> Vec<Value> {
        let done = self.casemate(&["image", "ls", "--json"]).expect(0);
        done.out().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Clear words, and a store as it was.
    #[track_caller]
    fn refuses_image(&self, bytes: impl AsRef<[u8]>, words: &str) {
        let before = store(self);
        self.import(bytes, "bad").refused(words);
        assert_eq!(store(self), before, "the store has changed");
        assert_eq!(staged(self), Vec::<PathBuf>::new(), "left in the staging area");
    }

    #[track_caller]
    fn shell(&self, image: &str, script: &str) -> String {
        self.run(&["--image", image, "--", "sh", "-c", script]).expect(0).out()
    }
}

#[test]
fn the_same_files_are_in_the_cell_whatever_form_the_image_comes_in() {
    let home = Home::new();
    let plain = rootfs().end();
    let layers = || {
        let base = rootfs().file("gone", "").file("dir/old", "").file("opaque/old", "");
        let above = Tar::new()
            .file(".wh.gone", "")
            .file("dir/new", "")
            .file("dir/.wh.old", "")
            .file("opaque/new", "")
            .file("opaque/.wh..wh..opq", "");
        (base.end(), above.end())
    };
    let (base, above) = layers();
    let parts = Parts::new(&[("+gzip", base), ("+zstd", above)]);
    let directory = home.beside("layout");
    write_layout(&parts.layout(), &directory);
    home.import(&plain, "plain").expect(0);
    home.import(gzip(&plain), "gzip").expect(0);
    home.import(zstd(&plain), "zstd").expect(0);
    home.import(pack_layout(&parts.layout()), "oci").expect(0);
    home.import(gzip(&parts.docker_archive().end()), "docker").expect(0);
    home.casemate(&["image", "import", directory.to_str().unwrap(), "--name", "directory"]).expect(0);

    let look = "cat /etc/motd /etc/secret /etc/link /etc/same; ls -l /etc/secret | cat";
    let told = home.shell("plain", look);
    assert!(told.starts_with("from the image\nreadable\nfrom the image\nfrom the image\n"), "{told}");
    for form in ["gzip", "zstd", "oci", "docker", "directory"] {
        assert_eq!(home.shell(form, look), told, "{form}");
    }
    for layered in ["oci", "docker", "directory"] {
        let left = home.shell(layered, "cd /; ls -a . dir opaque");
        let hidden = |line: &&str| ["gone", "old"].contains(line) || line.starts_with(".wh");
        assert_eq!(left.lines().filter(hidden).count(), 0, "{layered}: {left}");
        assert_eq!(left.matches("new\n").count(), 2, "{layered}: {left}");
    }
    // One tree for one content: compressed or not, directory or archive.
    let digests: BTreeMap<String, String> = home
        .listed()
        .into_iter()
        .flat_map(|image| {
            let digest = image["digest"].as_str().unwrap().to_owned();
            let names: Vec<String> = serde_json::from_value(image["names"].clone()).unwrap();
            names.into_iter().map(move |name| (name, digest.clone()))
        })
        .collect();
    assert_eq!(digests["plain"], digest(&plain));
    assert_eq!((&digests["gzip"], &digests["zstd"]), (&digests["plain"], &digests["plain"]));
    assert_eq!((&digests["oci"], &digests["directory"]), (&parts.manifest, &parts.manifest));
    assert_eq!(digests["docker"], parts.config);
    home.nothing_left();
}

#[test]
fn an_image_is_named_by_name_or_digest_and_the_record_has_the_digest() {
    let home = Home::new();
    let tar = rootfs().end();
    let digest = digest(&tar);
    assert_eq!(home.import(&tar, "tools:1").expect(0).out().trim(), digest);
    for image in ["tools:1", &digest, &digest[..19], &digest[7..19]] {
        let (done, json) = home.run_json(&["--image", image, "--", "cat", "/etc/motd"]);
        done.expect(0);
        let id = json["id"].as_str().unwrap().to_owned();
        let opened = home.records().into_iter().find(|record| record["id"] == id.as_str()).unwrap();
        let shown = if image == "tools:1" { format!("tools:1@{digest}") } else { digest.clone() };
        assert_eq!(opened["body"]["request"]["image"], shown.as_str());
        assert_eq!(opened["body"]["decision"]["image"], shown.as_str());
    }
    let explained = home.casemate(&["explain", "--image", "tools:1", "--", "true"]).expect(0).out();
    assert!(explained.contains(&digest), "{explained}");
    let explained =
        home.casemate(&["explain", "--json", "--image", "tools:1", "--", "true"]).expect(0).json();
    assert_eq!(explained["image"], format!("tools:1@{digest}"));

    home.run(&["--image", "tool:1", "--", "true"]).refused("no image called tool:1");
    assert!(
        home.run(&["--image", "tool:1", "--", "true"]).err().contains("tools:1"),
        "the near name is told"
    );
    home.run(&["--image", &digest[7..18], "--", "true"]).refused("no image called");
    home.run(&["--image", "default", "--", "true"]).refused("no image called default");
    for (flag, name) in
        [("--name", "host"), ("--name", "/x"), ("--name", "../x"), ("--name", &digest), ("--name", "")]
    {
        let path = home.write_beside("again.tar", &tar);
        home.casemate(&["image", "import", &path, flag, name]).refused("");
    }
    home.verify();
    home.nothing_left();
}

#[test]
fn a_cell_cannot_change_its_image() {
    let home = Home::new();
    home.import(rootfs().end(), "shared").expect(0);
    let before = store(&home);
    let attack = "for f in /etc/motd /etc/same /etc/link /bin/sh /etc /; do
          echo x 2>/dev/null > $f; echo x 2>/dev/null >> $f; echo x 2>/dev/null > $f/new; done
        exec 3</etc/motd; echo x 2>/dev/null > /proc/self/fd/3
        cat /etc/motd";
    assert_eq!(home.shell("shared", attack), "from the image\n");
    assert_eq!(store(&home), before);
    assert_eq!(home.shell("shared", "cat /etc/motd"), "from the image\n");
}

#[test]
fn bad_archives_are_refused_by_name_and_leave_nothing() {
    let home = Home::new();
    home.import(rootfs().end(), "good").expect(0);
    let good = rootfs().end();
    let huge = Header { size: 10_000_000_000, ..Header::new("var/huge", b'0') };
    let sparse =
        [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "10000000000")];
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (good[..good.len() / 2].to_vec(), "cut off"),
        (gzip(&good)[..1000].to_vec(), "cut off"),
        (zstd(&good)[..1000].to_vec(), ""),
        (Vec::new(), "cut off"),
        ([&good[..], b"more"].concat(), "goes on after its end"),
        ([gzip(&good), b"and a lot more".to_vec()].concat(), "cannot be expanded"),
        (Tar::new().file("a", "").file("../../etc/x", "").end(), "../../etc/x: a path that leads out"),
        (Tar::new().file("a/../../x", "").end(), "leads out"),
        (Tar::new().file("/etc/passwd", "").end(), "/etc/passwd: an absolute path"),
        (Tar::new().special("dev/sda", b'4').end(), "dev/sda: a block device"),
        (Tar::new().special("dev/null", b'3').end(), "dev/null: a character device"),
        (Tar::new().special("run/pipe", b'6').end(), "run/pipe: a FIFO"),
        (Tar::new().hard_link("x", "/etc/shadow").end(), "x: an absolute path"),
        (Tar::new().hard_link("x", "../../etc/shadow").end(), "x: a path that leads out"),
        (Tar::new().hard_link("x", "nothing").end(), "x: a hard link to nothing, which is not there"),
        (
            Tar::new().symlink("out", "/etc").file("out/cm-test", "x").end(),
            "out/cm-test: its path leads through",
        ),
        (Tar::new().symlink("up", "..").file("up/cm-test", "x").end(), "up/cm-test: its path leads through"),
        (Tar::new().symlink("l", "/etc/passwd").hard_link("h", "l/x").end(), "h: its path leads through"),
        (Tar::new().member(&huge, b"").unfinished(), "var/huge: the archive holds more than"),
        (Tar::new().pax(&sparse).file("var/hole", "").end(), "var/hole: a sparse file"),
        (Tar::new().special("var/hole", b'S').end(), "var/hole: a sparse file"),
        (gzip(&vec![0; 256 << 20]), "goes on after its end"),
        (gzip(&Tar::new().file("zeros", vec![0; 256 << 20]).end()), "a bomb"),
        (
            Tar::new().file(&"d/".repeat(48), "").gnu_long(b'L', &"d/".repeat(129)).file("x", "").end(),
            "more than 128",
        ),
        (Tar::new().gnu_long(b'L', &"n".repeat(256)).file("x", "").end(), "256 bytes"),
        (Tar::new().file(".wh.x", "").end(), "a whiteout"),
        (Tar::new().end(), "nothing in it"),
        ((0..257).fold(Tar::new(), |tar, n| tar.file(&format!("f{n}"), "")).end(), "257 names"),
        (Tar::new().member(&Header { name: b"\xff", ..Header::new("", b'0') }, b"").end(), "not UTF-8"),
        (b"this is a text and no archive\n".repeat(100), "no tar header"),
        (b"\xfd7zXZ\0and so on".to_vec(), "xz"),
        (b"PK\x03\x04and so on".to_vec(), "zip"),
        (rootfs().file("oci-layout", "{}").file("index.json", "{}").end(), "not clear which"),
        (rootfs().file("manifest.json", "[]").end(), "not clear which"),
    ];
    for (bytes, words) in cases {
        home.refuses_image(bytes, words);
    }
    assert!(!Path::new("/etc/cm-test").exists());
    home.casemate(&["image", "import", "/no/such/file"]).refused("/no/such/file");
    home.casemate(&["image", "import", "/usr"]).refused("not an OCI layout");
    let small = home.write_beside("big.tar", Tar::new().file("a", vec![1; 2 << 20]).end());
    home.casemate(&["image", "import", &small, "--size-limit", "1M"])
        .refused("a: the archive holds more than 1048576");
    assert_eq!(home.shell("good", "cat /etc/motd"), "from the image\n");
    home.nothing_left();
}

#[test]
fn bad_images_are_refused_and_leave_nothing() {
    let home = Home::new();
    let layer = || Tar::new().file("a", "x").end();
    let parts = || Parts::new(&[("+gzip", layer())]);
    let packed = |parts: &Parts| pack_layout(&parts.layout());
    home.import(packed(&parts()), "good").expect(0);

    let of_layer = |parts: &Parts| {
        let manifest: Value = serde_json::from_slice(&parts.blobs[&parts.manifest]).unwrap();
        manifest["layers"][0]["digest"].as_str().unwrap().to_owned()
    };
    // Somebody has changed what was promised.
    let digests = [parts().manifest, parts().config, of_layer(&parts())];
    for digest in digests {
        let changed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut files = parts().layout();
            let (_, blob) = files.iter_mut().find(|(name, _)| name.contains(&digest[7..])).unwrap();
            change(blob);
            pack_layout(&files)
        };
        home.refuses_image(changed(&|blob| *blob.last_mut().unwrap() ^= 1), "has the digest");
        home.refuses_image(changed(&|blob| blob.truncate(blob.len() - 1)), "bytes, and not");
        home.refuses_image(changed(&|blob| blob.push(0)), "bytes, and not");
        let mut files = parts().layout();
        files.retain(|(name, _)| !name.contains(&digest[7..]));
        home.refuses_image(pack_layout(&files), "is not there");
    }
    // A layer that is what the manifest says, and not what the configuration says.
    let other = gzip(&Tar::new().file("a", "another").end());
    let mut swapped = parts();
    let digest = swapped.add(other.clone());
    let swapped = swapped.with_manifest(|manifest| {
        manifest["layers"][0]["digest"] = json!(digest);
        manifest["layers"][0]["size"] = json!(other.len());
    });
    home.refuses_image(packed(&swapped), "layer 1, expanded, has the digest");

    let media_type = |path: &str, value: Value| {
        parts().with_manifest(|manifest| *manifest.pointer_mut(path).unwrap() = value)
    };
    for unknown in
        ["application/vnd.oci.image.layer.nondistributable.v1.tar", "application/x-tar", "", "text/html"]
    {
        home.refuses_image(packed(&media_type("/layers/0/mediaType", json!(unknown))), "media type");
    }
    home.refuses_image(
        packed(&media_type("/config/mediaType", json!("application/vnd.wasm.config.v0+json"))),
        "media type",
    );
    home.refuses_image(packed(&media_type("/mediaType", json!("application/x"))), "media type");
    home.refuses_image(packed(&media_type("/schemaVersion", json!(1))), "version 1");
    home.refuses_image(packed(&media_type("/layers", json!([]))), "0 layers");
    home.refuses_image(packed(&media_type("/layers/0/digest", json!("sha256:../../x"))), "not a digest");
    home.refuses_image(packed(&media_type("/layers/0/digest", json!("md5:00"))), "not a digest");
    home.refuses_image(
        packed(&media_type("/layers/0/mediaType", json!(format!("{OCI_LAYER}+zstd")))),
        "cannot be expanded",
    );

    let with_index = |change: &dyn Fn(&mut Value)| {
        let parts = parts();
        let mut index = parts.index();
        change(&mut index);
        let mut files = parts.layout();
        files.retain(|(name, _)| name != "index.json");
        files.push(("index.json".into(), serde_json::to_vec(&index).unwrap()));
        pack_layout(&files)
    };
    home.refuses_image(
        with_index(&|index| index["manifests"][1]["platform"]["architecture"] = json!("arm64")),
        "linux/arm64",
    );
    home.refuses_image(with_index(&|index| index["manifests"] = json!([])), "nothing in it");
    home.refuses_image(
        with_index(&|index| index["manifests"][0] = index["manifests"][1].clone()),
        "2 images",
    );
    home.refuses_image(with_index(&|index| index["mediaType"] = json!("x")), "media type");
    home.refuses_image(with_index(&|index| index["manifests"][1]["mediaType"] = json!("x")), "media type");
    home.refuses_image(with_index(&|index| *index = json!("nonsense")), "makes no sense");

    // Docker's own.
    let archive = parts().docker_archive().end();
    home.import(&archive, "docker").expect(0);
    let config = &parts().config[7..];
    let named = |manifest: Value| {
        let config_bytes = parts().blobs[&parts().config].clone();
        Tar::new()
            .file(&format!("{config}.json"), config_bytes)
            .file("layer.tar", layer())
            .file("manifest.json", serde_json::to_vec(&manifest).unwrap())
            .end()
    };
    let image = |layers: Value| json!({"Config": format!("{config}.json"), "Layers": layers});
    home.refuses_image(named(json!([image(json!(["../../etc/passwd"]))])), "is not there");
    home.refuses_image(named(json!([image(json!(["none.tar"]))])), "is not there");
    home.refuses_image(named(json!([image(json!(["layer.tar", "layer.tar"]))])), "speaks of 1 layers");
    home.refuses_image(named(json!([image(json!(["layer.tar"])), image(json!(["layer.tar"]))])), "2 images");
    home.refuses_image(
        named(json!([{"Config": "layer.tar", "Layers": ["layer.tar"]}])),
        "its configuration is called",
    );
    home.refuses_image(named(json!({"nonsense": 1})), "makes no sense");
    let wrong = Tar::new()
        .file("manifest.json", serde_json::to_vec(&json!([image(json!(["layer.tar"]))])).unwrap())
        .file(&format!("{config}.json"), "{}")
        .file("layer.tar", layer());
    home.refuses_image(wrong.end(), "the configuration has the digest");
}

#[test]
fn names_move_and_images_go_when_nobody_uses_them() {
    let home = Home::new();
    let first = home.import(rootfs().end(), "a").expect(0).out().trim().to_owned();
    home.import(rootfs().end(), "b").expect(0);
    let second = home.import(rootfs().file("more", "").end(), "a").expect(0).out().trim().to_owned();
    assert_ne!(first, second);
    assert_eq!(home.shell("a", "ls /more"), "/more\n");
    // The first has another name.
    home.casemate(&["image", "rm", "b"]).expect(0);
    home.run(&["--image", "b", "--", "true"]).refused("no image called b");
    home.run(&["--image", &first, "--", "true"]).refused("no image called");

    let mut using =
        Running::start(home.run_command(&["--image", "a", "--", "sh", "-c", "echo in use; sleep 30"]));
    using.wait_for_output("in use");
    let before = store(&home);
    home.casemate(&["image", "rm", "a"]).refused("in use");
    home.casemate(&["image", "rm", &second]).refused("in use");
    assert_eq!(store(&home), before);
    // It can get another name meanwhile, and lose it again.
    home.import(rootfs().file("more", "").end(), "c").expect(0);
    home.casemate(&["image", "rm", "c"]).expect(0);
    using.signal(Signal::TERM);
    using.finish();
    home.casemate(&["image", "rm", &second[7..19]]).expect(0);
    assert_eq!((home.listed(), staged(&home)), (Vec::new(), Vec::new()));
    assert_eq!(fs::read_dir(home.path().join("images/trees")).unwrap().count(), 0);
    home.casemate(&["image", "rm", "a"]).refused("no image called a");
    home.nothing_left();
}

#[test]
fn what_a_killed_import_leaves_goes_with_the_next_command() {
    for next in [&["image", "ls"][..], &["run", "--", "true"], &["image", "rm", "none"]] {
        let home = Home::new();
        let mut command = home.command(["image", "import", "-", "--name", "half"]);
        command.stdin(Stdio::piped());
        let mut importing = Running::start(command);
        let tar = rootfs().end();
        importing.feed(&tar[..tar.len() - 20_000]);
        eventually("half an image is there", Duration::from_secs(10), || {
            staged(&home).iter().any(|dir| dir.join("root/bin").is_dir() || dir.join("root/usr").is_dir())
        });
        // While it lives, nobody else takes it away.
        home.casemate(&["image", "ls"]).expect(0);
        assert_eq!(staged(&home).len(), 1);
        importing.signal(Signal::KILL);
        importing.finish();
        assert_eq!(staged(&home).len(), 1);
        home.casemate(next);
        assert_eq!(staged(&home), Vec::<PathBuf>::new(), "{next:?}");
        assert_eq!(home.listed(), Vec::<Value>::new());
        home.nothing_left();
    }
}

#[test]
fn imports_at_the_same_time_do_not_get_in_each_others_way() {
    let home = Home::new();
    let same = home.write_beside("same.tar", rootfs().end());
    let other = home.write_beside("other.tar", gzip(&rootfs().file("other", "").end()));
    let start =
        |path: &str, name: &str| Running::start(home.command(["image", "import", path, "--name", name]));
    let running: Vec<Running> = (0..3)
        .flat_map(|n| [start(&same, &format!("same-{n}")), start(&other, &format!("other-{n}"))])
        .collect();
    for import in running {
        import.finish().expect(0);
    }
    let listed = home.listed();
    assert_eq!(listed.len(), 2);
    assert!(listed.iter().all(|image| image["names"].as_array().unwrap().len() == 3), "{listed:?}");
    assert_eq!(staged(&home), Vec::<PathBuf>::new());
    assert_eq!(home.shell("other-2", "ls /other; cat /etc/motd"), "/other\nfrom the image\n");
}

#[test]
fn a_full_disk_leaves_the_store_as_it_was() {
    let home = Home::new();
    let small = home.write_beside("small.tar", Tar::new().file("a", vec![1; 100_000]).end());
    let large = home.write_beside("large.tar", Tar::new().file("b", vec![2; 3 << 20]).end());
    let many = (0..4000).fold(Tar::new(), |tar, n| tar.file(&format!("f{n}"), "x"));
    let many = home.write_beside("many.tar", many.end());
    let script = r#"
        mount -t tmpfs -o size=1m,nr_inodes=1000 none "$CASEMATE_HOME"
        "$BIN" image import "$SMALL" --name small > /dev/null
        before=$(cd "$CASEMATE_HOME/images"; find trees names.json | sort; cat names.json)
        for bad in "$LARGE" "$MANY"; do
            ! "$BIN" image import "$bad" --name bad 2> "$ERR"
            cat "$ERR" >&2
            after=$(cd "$CASEMATE_HOME/images"; find trees names.json | sort; cat names.json)
            [ "$before" = "$after" ]
            [ -z "$(ls "$CASEMATE_HOME/images/staging")" ]
        done
        "$BIN" image ls --json
    "#;
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--propagation", "private", "sh", "-euc", script]);
    command.env("CASEMATE_HOME", home.path()).env("BIN", binary()).stdin(Stdio::null());
    command.env("SMALL", small).env("LARGE", large).env("MANY", many).env("ERR", home.beside("err"));
    let done = finish(command).expect(0);
    assert_eq!(done.err().matches("error: ").count(), 2, "{}", done.err());
    assert_eq!(done.err().to_lowercase().matches("no space left").count(), 2, "{}", done.err());
    assert_eq!(done.json()["names"], json!(["small"]));
}

#[test]
fn what_is_stored_belongs_to_the_store_and_sets_no_ids() {
    let home = Home::new();
    let tar = Tar::new()
        .file_with_mode("su", "", 0o6755)
        .file_with_mode("closed", "", 0o000)
        .member(&Header { mode: 0o2700, ..Header::new("dir", b'5') }, b"");
    let digest = home.import(tar.end(), "modes").expect(0).out().trim()[7..].to_owned();
    let root = home.path().join("images/trees").join(digest).join("root");
    let modes = ["su", "closed", "dir", "."].map(|name| {
        let meta = fs::metadata(root.join(name)).unwrap();
        assert_eq!(meta.uid(), rustix::process::geteuid().as_raw());
        meta.permissions().mode() & 0o7777
    });
    assert_eq!(modes, [0o755, 0o444, 0o755, 0o755]);
    assert_eq!(fs::metadata(home.path().join("images")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn the_unpacker_is_confined_while_it_reads() {
    let home = Home::new();
    let mut command = home.command(["image", "import", "-", "--name", "x"]);
    command.stdin(Stdio::piped());
    let mut importing = Running::start(command);
    let tar = rootfs().end();
    importing.feed(&tar[..tar.len() - 20_000]);
    eventually("it is unpacking", Duration::from_secs(10), || {
        staged(&home).iter().any(|dir| dir.join("root/bin").is_dir() || dir.join("root/usr").is_dir())
    });
    let parent = importing.pid().as_raw_nonzero().to_string();
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap();
    let child = children.split_whitespace().next().expect("an unpacker").to_owned();
    let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1".into(), "2".into()), "{status}");
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    if is_root() {
        assert_eq!(field("CapBnd:"), "0000000000000000");
    }
    let limits = fs::read_to_string(format!("/proc/{child}/limits")).unwrap();
    assert!(limits.lines().any(|line| line.starts_with("Max processes             0")), "{limits}");
    let open: Vec<PathBuf> = fs::read_dir(format!("/proc/{child}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|fd| fs::read_link(fd.path()).ok())
        .collect();
    let beyond = open.iter().filter(|path| path.starts_with("/") && !path.starts_with(home.path()));
    assert_eq!(beyond.count(), 0, "{open:?}");
    importing.signal(Signal::KILL);
    importing.finish();
    eventually("it ends with whoever feeds it", Duration::from_secs(5), || {
        !Path::new(&format!("/proc/{child}")).exists()
    });
}

/// The path that the default image takes, with less to download: this machine's own suite, and nothing but what every image has.
#[test]
fn an_image_is_built_of_debians_packages() {
    let home = Home::new();
    let release = fs::read_to_string("/etc/os-release").unwrap();
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).expect("Debian");
    let recipe = home
        .write_beside("tiny.toml", format!("name = \"tiny\"\nsuite = \"{suite}\"\nsize-limit = \"400M\"\n"));
    // Downloads take as long as they take.
    let built = home.command(["image", "build", &recipe]).output().unwrap();
    let said = String::from_utf8_lossy(&built.stderr).into_owned();
    if !is_root() && !built.status.success() {
        // Not every machine lets a user without privileges have more ids than one.
        assert!(said.contains("error: ") && said.contains("hint: "), "{said}");
        assert_eq!((home.listed(), staged(&home)), (Vec::new(), Vec::new()));
        return;
    }
    assert!(built.status.success(), "{said}");
    assert!(home.shell("tiny", "cat /etc/os-release").contains(suite));
    let listed = home.listed();
    assert_eq!(listed[0]["source"], format!("build of Debian {suite}"));
    home.nothing_left();
}

#[test]
fn a_recipe_that_makes_no_sense_is_refused_before_anything_is_fetched() {
    let home = Home::new();
    for (text, words) in [
        ("suite = \"forky\"\nhook = \"x\"\n", "line 2"),
        ("packages = [\"x\"]\n", "suite"),
        ("suite = \"--help\"\n", "no suite"),
        ("suite = \"forky\"\npackages = [\"-x\"]\n", "no package"),
        ("suite = \"forky\"\nsize-limit = \"lots\"\n", "lots"),
        ("suite = \"forky\"\nname = \"../x\"\n", "cannot be an image's name"),
    ] {
        let recipe = home.write_beside("bad.toml", text);
        home.casemate(&["image", "build", &recipe]).refused(words);
    }
    home.casemate(&["image", "build", "/no/such/recipe.toml"]).refused("/no/such/recipe.toml");
    let mut without = home.command(["image", "build"]);
    without.env("PATH", home.path());
    finish(without).refused("");
    assert_eq!(staged(&home), Vec::<PathBuf>::new());
}

#[test]
fn a_file_that_only_pretends_to_be_large_is_not_read_to_its_end() {
    let home = Home::new();
    let path = home.beside("hole.tar");
    File::create(&path).unwrap().set_len(10 << 30).unwrap();
    let done = home.casemate(&["image", "import", path.to_str().unwrap()]);
    done.refused("");
    assert!(done.took < Duration::from_secs(20), "{:?}", done.took);
    assert_eq!(staged(&home), Vec::<PathBuf>::new());
}
