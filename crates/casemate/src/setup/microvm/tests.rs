use super::kernel::tests::bz_image;
use std::path::PathBuf;

use super::*;

fn target(home: &tempfile::TempDir) -> PathBuf {
    home.path().join("microvm/kernel")
}

/// What else there is beside the kit, after all: nothing.
#[track_caller]
fn nothing_beside(target: &Path) {
    let entries = fs::read_dir(target.parent().unwrap()).unwrap().flatten();
    let others: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path != target).collect();
    assert!(others.is_empty(), "left behind: {others:?}");
}

async fn make_of(target: &Path, kernel: &Path) -> Result<Made, Failure> {
    make(target, Given { from: None, kernel: Some(kernel) }).await
}

#[tokio::test]
async fn a_kernel_of_ones_own_is_taken_once_and_replaced_by_another() {
    let home = tempfile::tempdir().unwrap();
    let (target, file) = (target(&home), home.path().join("bzImage"));
    for (version, is_new) in [("6.6.1-own", true), ("6.6.1-own", false), ("6.6.2-own", true)] {
        fs::write(&file, bz_image(version)).unwrap();
        let made = make_of(&target, &file).await.unwrap();
        assert_eq!((made.version.as_str(), made.is_new), (version, is_new));
        assert_eq!(kit::installed(&target).unwrap().source, format!("--kernel {}", file.display()));
        assert_eq!(fs::read(target.join("vmlinuz")).unwrap(), bz_image(version));
        assert_eq!(fs::read_dir(target.join("drivers")).unwrap().count(), 0);
        nothing_beside(&target);
    }
}

#[tokio::test]
async fn what_is_not_a_kernel_leaves_what_is_there() {
    let home = tempfile::tempdir().unwrap();
    let (target, file) = (target(&home), home.path().join("bzImage"));
    fs::write(&file, bz_image("6.6.1-own")).unwrap();
    make_of(&target, &file).await.unwrap();
    let before = kit::installed(&target);
    let long = home.path().join("long");
    fs::File::create(&long).unwrap().set_len(LARGEST + 1).unwrap();
    let other = home.path().join("other");
    fs::write(&other, "no kernel").unwrap();
    for (file, words) in [
        (other.as_path(), "not a bzImage"),
        (long.as_path(), "not a file of at most 256 MiB"),
        (home.path(), "not a file of at most 256 MiB"),
        (&home.path().join("nowhere"), "No such file"),
    ] {
        let Err(Failure::Told { message, hint }) = make_of(&target, file).await else { panic!("{words}") };
        assert!(message.contains(words) && message.contains(&file.display().to_string()), "{message}");
        assert_eq!(hint.as_deref(), Some(WHAT_KERNEL));
        assert_eq!(kit::installed(&target), before);
        nothing_beside(&target);
    }
}

#[test]
fn the_lists_are_written_for_people() {
    assert!(
        targets().starts_with("drivers virtio_mmio virtio_blk virtio_console erofs overlay\nextra veth ")
    );
    assert!(targets().ends_with("vmw_vsock_virtio_transport\n"));
}
