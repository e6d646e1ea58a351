//! `casemate setup microvm`: QEMU from the distribution, and in the home a kernel, with the modules that our PID 1 inserts into it.
//!
//! The kernel is Debian's for virtual machines, out of its package: nothing of it is installed on this machine, where it would
//! make an initial RAM disk and change what is booted next.

mod kernel;
mod kit;
mod modules;
mod package;

use std::fs;
use std::path::Path;

use kit::Kit;
use modules::{Target, Tree};
use package::Offer;

use super::place::Place;
use super::{Given, Step, apt, cannot};
use crate::failure::{Failure, os_words};
use crate::signals::Signals;

const QEMU: &str = "/usr/bin/qemu-system-x86_64";
const QEMU_PACKAGE: &str = "qemu-system-x86";
const BY_HAND: &str =
    "as root: apt-get install --no-install-recommends qemu-system-x86, then casemate setup microvm again";

const ELSEWHERE: &str = "get Debian's package linux-image-VERSION-cloud-amd64 elsewhere and give its directory: \
                         casemate setup microvm --from DIR (or a kernel of your own: --kernel FILE)";
const WHAT_KERNEL: &str = "--kernel takes a bzImage (the file that boot loaders call vmlinuz) for x86_64";

/// No kernel and no module is nearly as large.
const LARGEST: u64 = 256 << 20;

/// What is inserted, by directory of the kit: for every machine; for those that run containers of their own, behind a bridge; and for
/// machines that are reached through vsock. Dependencies come along.
const LISTS: [(&str, &[Target]); 3] = [
    (
        "drivers",
        &[
            Target::needed("virtio_mmio"),
            Target::needed("virtio_blk"),
            Target::needed("virtio_console"),
            Target::needed("erofs"),
            Target::needed("overlay"),
        ],
    ),
    (
        "extra",
        &[
            Target::welcome("veth"),
            Target::welcome("bridge"),
            Target::welcome("nf_tables"),
            Target::welcome("nft_compat"),
            Target::welcome("nft_ct"),
            Target::welcome("nft_chain_nat"),
            Target::welcome("nft_masq"),
            Target::welcome("nft_nat"),
            Target::welcome("nf_nat"),
            Target::welcome("xt_MASQUERADE"),
            Target::welcome("xt_addrtype"),
            Target::welcome("xt_comment"),
            Target::welcome("xt_conntrack"),
            Target::welcome("xt_nat"),
            Target::welcome("xt_tcpudp"),
            Target::welcome("ip_tables"),
            Target::welcome("iptable_filter"),
            Target::welcome("iptable_nat"),
            Target::welcome("fuse"),
            Target::welcome("loop"),
            Target::welcome("tun"),
        ],
    ),
    (
        "vsock",
        &[
            Target::needed("vsock"),
            Target::needed("vmw_vsock_virtio_transport_common"),
            Target::needed("vmw_vsock_virtio_transport"),
        ],
    ),
];

/// The file that says which lists a kit was made for. Another version of ours may want more of the same kernel.
const TARGETS: &str = "targets";

/// What became of the kernel.
struct Made {
    version: String,
    is_new: bool,
}

pub(super) async fn microvm(given: Given<'_>) -> Result<(), Failure> {
    // Before signals are caught: half an installation is for the package manager to deal with, which gets them itself.
    qemu()?;
    let target = casemate_engine::default_home().join("microvm/kernel");
    let mut signals = Signals::catch()?;
    let made = tokio::select! {
        made = make(&target, given) => made?,
        () = signals.next() => return Err(Failure::Interrupted),
    };
    let Made { version, is_new } = made;
    let words = if is_new { "is now" } else { "was already" };
    eprintln!("ready: QEMU is there, and Linux {version} {words} in {}", target.display());
    Ok(())
}

fn qemu() -> Result<(), Failure> {
    const MISSING: &str = "qemu-system-x86_64 is not installed";
    if Path::new(QEMU).exists() {
        return Ok(());
    }
    if !apt::is_there() {
        return Err(Failure::new(
            format!("{MISSING}, and there is no apt-get to install it with"),
            format!(
                "install QEMU for x86_64 (7.2 or newer) as {QEMU} in the way of this distribution; then {ELSEWHERE}"
            ),
        ));
    }
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new(format!("{MISSING}, and only root can do that"), BY_HAND));
    }
    apt::install(QEMU_PACKAGE, BY_HAND, BY_HAND)?;
    match Path::new(QEMU).exists() {
        true => Ok(()),
        false => Err(Failure::new(format!("{QEMU_PACKAGE} is installed, but has no {QEMU}"), BY_HAND)),
    }
}

/// Makes the kit beside where it belongs, and puts it there if it is another than the one that is there.
async fn make(target: &Path, given: Given<'_>) -> Result<Made, Failure> {
    let home = target.parent().unwrap_or(target);
    let place = Place::beneath(home)?;
    let installed = kit::installed(target);
    let kit = match given.kernel {
        Some(file) => own(&place, file)?,
        None => {
            let offer = match given.from {
                Some(directory) => Offer::lying_in(directory).await?,
                None => Offer::of_the_archive(&place).await?,
            };
            if let Some(record) = &installed
                && record.source == offer.source()
                && record.has(TARGETS, targets().as_bytes())
            {
                return Ok(Made { version: record.version.clone(), is_new: false });
            }
            debians(&place, &offer).await?
        }
    };
    let version = kit.record().version.clone();
    let is_new = installed.as_ref() != Some(kit.record());
    if is_new {
        let _step = Step::begin("writing it all down");
        kit.install(target)?;
    }
    Ok(Made { version, is_new })
}

/// A kernel that somebody has built, with what every machine needs built in: it has no modules.
fn own(place: &Place, file: &Path) -> Result<Kit, Failure> {
    let _step = Step::begin(format!("checking {}", file.display()));
    let image = read_file(file, WHAT_KERNEL)?;
    let version = kernel::version(&image)
        .map_err(|malformed| Failure::new(format!("{}: {malformed}", file.display()), WHAT_KERNEL))?;
    let mut kit = Kit::begin(place.directory("kit")?, version, format!("--kernel {}", file.display()));
    kit.add("vmlinuz", &image)?;
    for (name, _) in LISTS {
        place.directory(&format!("kit/{name}"))?;
    }
    Ok(kit)
}

/// Debian's, out of its package.
async fn debians(place: &Place, offer: &Offer<'_>) -> Result<Kit, Failure> {
    let package = offer.unpack(place).await?;
    let _step = Step::begin("finding out which modules need which");
    let image = read_file(&package.vmlinuz, ELSEWHERE)?;
    kernel::version(&image)
        .map_err(|malformed| Failure::new(format!("the package's kernel: {malformed}"), ELSEWHERE))?;
    let mut kit = Kit::begin(place.directory("kit")?, package.version, offer.source());
    kit.add("vmlinuz", &image)?;
    kit.add(TARGETS, targets().as_bytes())?;
    let tree = Tree::read(&package.modules)?;
    let mut drivers = Vec::new();
    for (directory, targets) in LISTS {
        let modules = tree.load(targets).await?;
        // What every machine has already is not inserted twice.
        let order = modules.order(targets, &drivers)?;
        place.directory(&format!("kit/{directory}"))?;
        for (index, name) in order.iter().enumerate() {
            kit.add(&format!("{directory}/{index:02}-{name}.ko"), modules.bytes(name))?;
        }
        if directory == LISTS[0].0 {
            drivers = order;
        }
    }
    Ok(kit)
}

/// The lists, for people and for comparison.
fn targets() -> String {
    let line = |(directory, targets): (&str, &[Target])| {
        let names: Vec<&str> = targets.iter().map(|target| target.name).collect();
        format!("{directory} {}\n", names.join(" "))
    };
    LISTS.map(line).concat()
}

/// A whole file, which must be one, and of a reasonable size.
fn read_file(path: &Path, hint: &str) -> Result<Vec<u8>, Failure> {
    let cannot_read =
        |error| Failure::new(format!("cannot read {}: {}", path.display(), os_words(error)), hint);
    let metadata = fs::metadata(path).map_err(cannot_read)?;
    if !metadata.is_file() || metadata.len() > LARGEST {
        return Err(Failure::new(
            format!("{} is not a file of at most {} MiB", path.display(), LARGEST >> 20),
            hint,
        ));
    }
    fs::read(path).map_err(cannot_read)
}

#[cfg(test)]
mod tests;
