//! `casemate setup microvm`, with packages and kernels of the tests' own: whatever happens, what is there is whole or as it was.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use common::leftovers::{Process, processes};
use common::{Done, Home, Running, binary, eventually, finish, needs_root};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// What each of these modules says that it needs. Everything that a kit has to have is there, and a little more.
const MODULES: [(&str, &str); 13] = [
    ("virtio_ring", "depends="),
    ("virtio", "depends=virtio_ring"),
    ("virtio_mmio", "depends=virtio,virtio_ring"),
    ("virtio-console", "depends=virtio,virtio_ring"),
    ("erofs", "depends=libcrc32c"),
    ("libcrc32c", "softdep=pre: crc32c\\0depends="),
    ("crc32c_generic", "depends="),
    ("overlay", "depends="),
    ("llc", "depends="),
    ("bridge", "depends=llc,libcrc32c"),
    ("vsock", "depends="),
    ("vmw_vsock_virtio_transport_common", "depends=vsock"),
    ("vmw_vsock_virtio_transport", "depends=vmw_vsock_virtio_transport_common,virtio,virtio_ring,vsock"),
];
const BUILT_IN: &str = "kernel/drivers/block/virtio_blk.ko\nkernel/net/802/stp.ko\n";

const KIT: [&str; 16] = [
    "drivers/00-virtio_ring.ko",
    "drivers/01-virtio.ko",
    "drivers/02-virtio_mmio.ko",
    "drivers/03-virtio_console.ko",
    "drivers/04-crc32c_generic.ko",
    "drivers/05-libcrc32c.ko",
    "drivers/06-erofs.ko",
    "drivers/07-overlay.ko",
    "extra/00-llc.ko",
    "extra/01-bridge.ko",
    "kernel.json",
    "targets",
    "vmlinuz",
    "vsock/00-vsock.ko",
    "vsock/01-vmw_vsock_virtio_transport_common.ko",
    "vsock/02-vmw_vsock_virtio_transport.ko",
];

#[test]
fn a_package_becomes_a_kit_and_is_taken_once() {
    let home = ready();
    let packages = home.packages("6.1.0-9-cloud-amd64", "6.1.9-1");
    let done = home.setup_from(&packages).expect(0);
    assert!(done.err().contains("Linux 6.1.0-9-cloud-amd64 is now in "), "{}", done.err());
    assert_eq!(home.kit().keys().map(String::as_str).collect::<Vec<_>>(), KIT);
    let record = home.whole_record();
    assert_eq!(record["version"], "6.1.0-9-cloud-amd64");
    assert_eq!(record["source"], "linux-image-6.1.0-9-cloud-amd64 6.1.9-1 (Debian)");
    let made = fs::metadata(home.target()).unwrap().modified().unwrap();
    let done = home.setup_from(&packages).expect(0);
    assert!(done.err().contains("was already in "), "{}", done.err());
    assert_eq!(fs::metadata(home.target()).unwrap().modified().unwrap(), made);
    // A newer one replaces it, and what somebody has damaged is made anew.
    fs::remove_dir_all(&packages).unwrap();
    let packages = home.packages("6.1.0-10-cloud-amd64", "6.1.10-1");
    for _ in 0..2 {
        home.setup_from(&packages).expect(0);
        assert_eq!(home.whole_record()["version"], "6.1.0-10-cloud-amd64");
        fs::write(home.target().join("drivers/01-virtio.ko"), "damaged").unwrap();
    }
    home.nothing_beside();
}

#[test]
fn it_takes_no_root_where_qemu_is_there() {
    let home = Home::unprivileged();
    let packages = home.packages("6.1.0-9-cloud-amd64", "6.1.9-1");
    home.setup_from(&packages).expect(0);
    home.whole_record();
}

#[test]
fn a_kernel_of_ones_own_needs_no_modules() {
    let home = ready();
    let kernel = home.write_beside("bzImage", bz_image("6.6.6-own (me@here) #1"));
    home.casemate(&["setup", "microvm", "--kernel", &kernel]).expect(0);
    let record = home.whole_record();
    assert_eq!(record["version"], "6.6.6-own");
    assert_eq!(record["source"], format!("--kernel {kernel}"));
    assert_eq!(home.kit().keys().map(String::as_str).collect::<Vec<_>>(), ["kernel.json", "vmlinuz"]);
    assert!(home.target().join("drivers").is_dir());
    let other = home.write_beside("other", "\x7fELF");
    home.casemate(&["setup", "microvm", "--kernel", &other])
        .refused("not a bzImage (there is no HdrS at 0x202)");
    assert_eq!(home.whole_record(), record);
    home.nothing_beside();
}

#[test]
fn what_cannot_be_used_is_refused_and_leaves_what_is_there() {
    let home = ready();
    let packages = home.packages("6.1.0-9-cloud-amd64", "6.1.9-1");
    home.setup_from(&packages).expect(0);
    let before = home.kit();
    let refused = |directory: &Path, words: &str| {
        home.setup_from(directory).refused(words);
        assert_eq!(home.kit(), before);
        home.nothing_beside();
    };
    refused(&home.beside("nowhere"), "cannot read");
    let empty = home.beside("empty");
    fs::create_dir(&empty).unwrap();
    refused(&empty, "has no kernel of Debian's");
    let newer = home.package("6.1.0-10-cloud-amd64", "6.1.10-1", &MODULES);
    let package = fs::read_dir(newer).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&package).unwrap();
    let name = package.file_name().unwrap();
    fs::write(empty.join(name), &whole[..whole.len() - whole.len() / 4]).unwrap();
    refused(&empty, "dpkg-deb failed: ");
    fs::write(empty.join(name), "no package").unwrap();
    refused(&empty, "dpkg-deb failed: ");
    fs::copy(&package, packages.join(name)).unwrap();
    refused(&packages, "has 2 kernels");
    let without = home.package("6.1.0-11-cloud-amd64", "6.1.11-1", &MODULES[1..]);
    refused(&without, "a module needs virtio_ring, which the package does not have");
    let without = home.package("6.1.0-12-cloud-amd64", "6.1.12-1", &MODULES[..12]);
    refused(&without, "the package has no module vmw_vsock_virtio_transport");
    let circle = [("virtio_ring", "depends=virtio"), ("virtio", "depends=virtio_ring")];
    let circle = home.package("6.1.0-13-cloud-amd64", "6.1.13-1", &[&circle[..], &MODULES[2..]].concat());
    refused(&circle, "modules need each other: ");
}

#[test]
fn ways_to_call_it_that_mean_nothing_are_refused() {
    let home = Home::new();
    home.casemate(&["setup", "gvisor", "--kernel", "x"]).refused("--kernel is for one wall only");
    home.casemate(&["setup", "--kernel", "x"]).refused("--kernel is for one wall only");
    home.casemate(&["setup", "--from", "x"]).refused("--from is for one wall at a time");
    home.casemate(&["setup", "microvm", "gvisor", "--from", "x"]).refused("--from is for one wall at a time");
    home.casemate(&["setup", "microvm", "--kernel", "x", "--from", "x"]).refused("cannot be used with");
}

#[test]
fn a_full_disk_is_named() {
    let home = ready();
    let packages = home.packages("6.1.0-9-cloud-amd64", "6.1.9-1");
    // What fills the disk is a part of the package that would not even be taken.
    let mount = "mount -t tmpfs -o size=600k casemate-test \"$CASEMATE_HOME\" && exec \"$0\" \"$@\"";
    let from = packages.to_str().unwrap();
    for (words, why) in [(&["--from", from][..], "No space left on device"), (&[], "MiB are free in ")] {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", mount]).arg(binary()).args(["setup", "microvm"]);
        command.args(words).env("CASEMATE_HOME", home.path());
        let done = finish(command);
        done.refused(why);
        assert!(done.err().contains("hint: free some space"), "{}", done.err());
    }
}

#[test]
fn nothing_is_left_after_an_interruption() {
    for signal in [Signal::INT, Signal::TERM] {
        let home = ready();
        let packages = home.packages("6.1.0-9-cloud-amd64", "6.1.9-1");
        let running = home.unpacking(&packages);
        running.signal(signal);
        let done = running.finish().expect(137);
        assert!(done.took < Duration::from_secs(20));
        assert!(!home.target().exists());
        home.nothing_beside();
        // What was unpacking is gone, too.
        eventually("it is gone", Duration::from_secs(5), || home.processes().is_empty());
    }
}

#[test]
fn what_a_crash_leaves_is_cleared_by_the_next_run() {
    let home = ready();
    let packages = home.packages("6.1.0-9-cloud-amd64", "6.1.9-1");
    let running = home.unpacking(&packages);
    running.signal(Signal::KILL);
    running.finish().expect(137);
    let left = fs::read_dir(home.target().parent().unwrap()).unwrap().count();
    assert_eq!(left, 1, "the temporary directory");
    home.setup_from(&packages).expect(0);
    home.whole_record();
    home.nothing_beside();
    for process in home.processes() {
        let pid = Pid::from_raw(process.pid).unwrap();
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

#[test]
fn what_tests_get_is_whole_and_in_order() {
    let home = ready();
    casemate_testkit::microvm::give_to(&home.path());
    let record = home.whole_record();
    assert!(record["version"].as_str().unwrap().ends_with("-cloud-amd64"), "{record}");
    let kit = home.kit();
    let has = |part: &str| kit.keys().any(|name| name.starts_with("drivers/") && name.contains(part));
    assert!(has("-virtio_mmio.ko") && has("-erofs.ko"), "{:?}", kit.keys());
}

/// A home on a machine that has QEMU: as root, what is tested here would install it.
fn ready() -> Home {
    needs_root();
    assert!(Path::new("/usr/bin/qemu-system-x86_64").exists(), "QEMU is missing: run `cargo xtask runtimes`");
    Home::new()
}

impl Home {
    fn target(&self) -> PathBuf {
        self.path().join("microvm/kernel")
    }

    fn setup_from(&self, directory: &Path) -> Done {
        self.casemate(&["setup", "microvm", "--from", directory.to_str().unwrap()])
    }

    /// Every file, by its name in the kit.
    fn kit(&self) -> BTreeMap<String, Vec<u8>> {
        fn walk(directory: &Path, prefix: &str, found: &mut BTreeMap<String, Vec<u8>>) {
            for entry in fs::read_dir(directory).unwrap().flatten() {
                let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
                match entry.path().is_dir() {
                    true => walk(&entry.path(), &format!("{name}/"), found),
                    false => drop(found.insert(name, fs::read(entry.path()).unwrap())),
                }
            }
        }
        let mut found = BTreeMap::new();
        walk(&self.target(), "", &mut found);
        found
    }

    /// `kernel.json`, which must be true.
    #[track_caller]
    fn whole_record(&self) -> Value {
        let mut kit = self.kit();
        let record: Value = serde_json::from_slice(&kit.remove("kernel.json").unwrap()).unwrap();
        let digest = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        let files: BTreeMap<String, String> =
            kit.iter().map(|(name, bytes)| (name.clone(), digest(bytes))).collect();
        assert_eq!(record["files"], serde_json::to_value(files).unwrap());
        record
    }

    #[track_caller]
    fn nothing_beside(&self) {
        let entries = fs::read_dir(self.path().join("microvm")).unwrap().flatten();
        let others: Vec<_> =
            entries.map(|entry| entry.path()).filter(|path| *path != self.target()).collect();
        assert!(others.is_empty(), "left behind: {others:?}");
    }

    /// A directory with a package of a kernel in it, beside those that were asked for before.
    fn packages(&self, kernel: &str, version: &str) -> PathBuf {
        self.build(&self.beside("packages"), kernel, version, &MODULES)
    }

    /// A directory with nothing but this one.
    fn package(&self, kernel: &str, version: &str, modules: &[(&str, &str)]) -> PathBuf {
        self.build(&self.beside(&format!("only-{kernel}")), kernel, version, modules)
    }

    fn build(&self, into: &Path, kernel: &str, version: &str, modules: &[(&str, &str)]) -> PathBuf {
        let root = self.beside(&format!("root-{kernel}"));
        let tree = root.join("lib/modules").join(kernel);
        for directory in
            ["DEBIAN", "boot"].map(|name| root.join(name)).iter().chain([&tree.join("kernel/deep")])
        {
            fs::create_dir_all(directory).unwrap();
        }
        let control = format!(
            "Package: linux-image-{kernel}\nVersion: {version}\nArchitecture: amd64\nMaintainer: us\nDescription: a test\n"
        );
        fs::write(root.join("DEBIAN/control"), control).unwrap();
        fs::write(root.join("boot").join(format!("vmlinuz-{kernel}")), bz_image(kernel)).unwrap();
        let filler: Vec<u8> = (0..1_000_000u32)
            .flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes())
            .take(1 << 20)
            .collect();
        fs::write(root.join("boot/System.map"), filler).unwrap();
        fs::write(tree.join("modules.builtin"), BUILT_IN).unwrap();
        for (name, says) in modules {
            self.compile(&tree.join(format!("kernel/deep/{name}.ko")), says);
        }
        fs::create_dir_all(into).unwrap();
        let mut pack = Command::new("dpkg-deb");
        pack.args(["-Zgzip", "--build"])
            .arg(&root)
            .arg(into.join(format!("linux-image-{kernel}_{version}_amd64.deb")));
        assert!(finish(pack).code == 0, "dpkg-deb makes a package");
        into.to_owned()
    }

    /// An object file that says this about itself, as a module does.
    fn compile(&self, to: &Path, says: &str) {
        let source = format!(
            "static const char info[] __attribute__((section(\".modinfo\"), used)) = \"license=GPL\\0{says}\";\n"
        );
        let source = self.write_beside("module.c", source);
        let mut compile = Command::new("gcc");
        compile.args(["-c", "-o"]).arg(to).arg(source);
        finish(compile).expect(0);
    }

    /// Those of this home, whoever has started them.
    fn processes(&self) -> Vec<Process> {
        let mark = format!("CASEMATE_HOME={}", self.path().display());
        processes().into_iter().filter(|process| process.environment.contains(&mark)).collect()
    }

    /// A run that has come to the point where the package is unpacked, and stays there.
    fn unpacking(&self, packages: &Path) -> Running {
        let bin = self.beside("bin");
        let started = self.beside("started");
        fs::create_dir_all(&bin).unwrap();
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --extract ] || exec /usr/bin/dpkg-deb \"$@\"\nmkdir \"$3\"\ntouch \"$3/half\" {}\nsleep 50\n",
            started.display()
        );
        fs::write(bin.join("dpkg-deb"), script).unwrap();
        fs::set_permissions(bin.join("dpkg-deb"), PermissionsExt::from_mode(0o755)).unwrap();
        let mut command = self.command(["setup", "microvm", "--from", packages.to_str().unwrap()]);
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        command.env("PATH", path);
        let running = Running::start(command);
        eventually("it unpacks", Duration::from_secs(20), || started.exists());
        fs::remove_file(started).unwrap();
        running
    }
}

/// The least that has the header of a kernel.
fn bz_image(version: &str) -> Vec<u8> {
    let mut image = vec![0; 2048];
    image[0x1f1] = 1;
    image[0x1f4] = 16;
    image[0x202..0x206].copy_from_slice(b"HdrS");
    image[0x20e] = 0x80;
    image[0x280..][..version.len()].copy_from_slice(version.as_bytes());
    image
}
