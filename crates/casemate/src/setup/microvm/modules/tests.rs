use super::*;

const NO_MODULES: &[(&str, &[&str])] = &[];

/// A module of nothing but what it says about itself, as a linker would lay it out.
fn module(lines: &[&str]) -> Vec<u8> {
    let modinfo = lines.iter().flat_map(|line| [line.as_bytes(), &[0]].concat()).collect::<Vec<u8>>();
    let names = b"\0.modinfo\0.shstrtab\0";
    let names_at = 64 + modinfo.len() as u64;
    let table_at = names_at + names.len() as u64;
    let mut file = vec![0; 64];
    file[..7].copy_from_slice(IDENTITY);
    put(&mut file, TYPE_AT, &1u16.to_le_bytes());
    put(&mut file, MACHINE_AT, &62u16.to_le_bytes());
    put(&mut file, SECTIONS_AT, &table_at.to_le_bytes());
    put(&mut file, SECTION_SIZE_AT, &64u16.to_le_bytes());
    put(&mut file, SECTION_COUNT_AT, &3u16.to_le_bytes());
    put(&mut file, NAMES_SECTION_AT, &2u16.to_le_bytes());
    file.extend(&modinfo);
    file.extend(names);
    let sections =
        [(0u32, 0u32, 0, 0), (1, 1, 64, modinfo.len() as u64), (10, 3, names_at, names.len() as u64)];
    for (name, kind, offset, size) in sections {
        let mut header = vec![0; 64];
        put(&mut header, NAME_AT, &name.to_le_bytes());
        put(&mut header, KIND_AT, &kind.to_le_bytes());
        put(&mut header, OFFSET_AT, &offset.to_le_bytes());
        put(&mut header, SIZE_AT, &size.to_le_bytes());
        file.extend(header);
    }
    file
}

fn put(bytes: &mut [u8], at: u64, value: &[u8]) {
    bytes[at as usize..][..value.len()].copy_from_slice(value);
}

fn read(lines: &[&str]) -> Result<Modinfo, Malformed> {
    Modinfo::read(&module(lines))
}

/// A package's tree with modules of these names, each with lines about itself; and what is built in.
fn tree(modules: &[(&str, &[&str])], built_in: &[&str]) -> (tempfile::TempDir, Tree) {
    let root = tempfile::tempdir().unwrap();
    let list: String = built_in.iter().map(|name| format!("kernel/somewhere/{name}.ko\n")).collect();
    fs::write(root.path().join("modules.builtin"), list).unwrap();
    let directory = root.path().join("kernel/drivers/deep");
    fs::create_dir_all(&directory).unwrap();
    for (name, lines) in modules {
        fs::write(directory.join(format!("{name}.ko")), module(lines)).unwrap();
    }
    let tree = Tree::read(root.path()).unwrap();
    (root, tree)
}

async fn order(tree: &Tree, targets: &[Target]) -> Result<Vec<String>, String> {
    let ordered = match tree.load(targets).await {
        Ok(modules) => modules.order(targets, &[]),
        Err(failure) => Err(failure),
    };
    ordered.map_err(|failure| match failure {
        Failure::Told { message, .. } => message,
        other => panic!("{other:?}"),
    })
}

#[test]
fn a_module_says_what_it_needs() {
    let info = read(&["license=GPL", "depends=virtio,virtio-ring", "name=virtio_blk"]).unwrap();
    assert_eq!(info.needs, ["virtio", "virtio_ring"]);
    assert_eq!(info.wishes, [""; 0]);
    assert_eq!(read(&["depends="]).unwrap(), Modinfo::default());
    let info = read(&["softdep=pre: crc32c sha-256 post: late pre: again", "depends="]).unwrap();
    assert_eq!(info.wishes, ["crc32c", "sha_256", "again"]);
}

#[test]
fn what_is_not_a_module_is_told_apart() {
    assert_eq!(Modinfo::read(b""), Err(Malformed::NotAModule));
    assert_eq!(Modinfo::read(b"#!/bin/sh"), Err(Malformed::NotAModule));
    assert_eq!(Modinfo::read(IDENTITY), Err(Malformed::CutOff));
    assert_eq!(read(&[]), Err(Malformed::SaysNothing));
    assert_eq!(read(&["license=GPL"]), Err(Malformed::SaysNothing));
    assert_eq!(read(&["depends=../../etc/passwd"]), Err(Malformed::BadName));
    assert_eq!(read(&["depends=a b"]), Err(Malformed::BadName));
    let spoilt = |at: u64, value: &[u8]| {
        let mut file = module(&["depends=a"]);
        put(&mut file, at, value);
        Modinfo::read(&file)
    };
    // Another class, another type, another machine, and headers of another size.
    assert_eq!(spoilt(4, &[1]), Err(Malformed::NotAModule));
    assert_eq!(spoilt(TYPE_AT, &[2]), Err(Malformed::NotAModule));
    assert_eq!(spoilt(MACHINE_AT, &[3]), Err(Malformed::NotAModule));
    assert_eq!(spoilt(SECTION_SIZE_AT, &[40]), Err(Malformed::NotAModule));
    assert_eq!(spoilt(NAMES_SECTION_AT, &[1]), Err(Malformed::NotAModule));
    assert_eq!(spoilt(NAMES_SECTION_AT, &[3]), Err(Malformed::CutOff));
    assert_eq!(spoilt(SECTION_COUNT_AT, &[0]), Err(Malformed::CutOff));
    assert_eq!(spoilt(SECTIONS_AT, &u64::MAX.to_le_bytes()), Err(Malformed::CutOff));
    assert_eq!(spoilt(SECTIONS_AT, &(u64::MAX - 64).to_le_bytes()), Err(Malformed::CutOff));
}

#[test]
fn a_module_that_is_cut_off_or_damaged_is_never_read_beyond_its_end() {
    let whole = module(&["license=GPL", "depends=a,b", "softdep=pre: c"]);
    for length in 0..whole.len() {
        assert!(Modinfo::read(&whole[..length]).is_err(), "{length} bytes");
    }
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut file = whole.clone();
            file[at] = value;
            // Whatever it says, it says it without a panic.
            let _ = Modinfo::read(&file);
            let end = file.len().min(at + 8);
            file[at..end].fill(value);
            let _ = Modinfo::read(&file);
        }
    }
}

#[tokio::test]
async fn each_comes_after_what_it_needs() {
    let modules: &[(&str, &[&str])] = &[
        ("virtio_ring", &["depends="]),
        ("virtio", &["depends=virtio_ring"]),
        ("virtio_blk", &["depends=virtio,virtio_ring"]),
        ("virtio-mmio", &["depends=virtio,virtio-ring"]),
        ("unrelated", &["depends=virtio_blk"]),
    ];
    let (_root, tree) = tree(modules, &[]);
    let targets = [Target::needed("virtio_mmio"), Target::needed("virtio_blk"), Target::welcome("virtio")];
    let ordered = order(&tree, &targets).await.unwrap();
    assert_eq!(ordered, ["virtio_ring", "virtio", "virtio_mmio", "virtio_blk"]);
}

#[tokio::test]
async fn what_is_built_in_or_there_already_is_not_inserted() {
    let modules: &[(&str, &[&str])] = &[
        ("erofs", &["depends=libcrc32c,netfs"]),
        ("libcrc32c", &["depends="]),
        ("bridge", &["depends=stp,erofs"]),
    ];
    let (_root, tree) = tree(modules, &["netfs", "overlay", "stp"]);
    let targets = [Target::needed("overlay"), Target::needed("erofs")];
    let drivers = order(&tree, &targets).await.unwrap();
    assert_eq!(drivers, ["libcrc32c", "erofs"]);
    let targets = [Target::welcome("bridge"), Target::welcome("erofs")];
    let modules = tree.load(&targets).await.unwrap();
    assert_eq!(modules.order(&targets, &drivers).unwrap(), ["bridge"]);
}

#[tokio::test]
async fn a_wish_is_granted_where_it_can_be() {
    let modules: &[(&str, &[&str])] = &[
        ("libcrc32c", &["softdep=pre: crc32c nowhere sha256", "depends="]),
        ("crc32c_generic", &["softdep=pre: libcrc32c", "depends="]),
    ];
    let (_root, tree) = tree(modules, &["sha256_generic"]);
    let ordered = order(&tree, &[Target::needed("libcrc32c")]).await.unwrap();
    assert_eq!(ordered, ["crc32c_generic", "libcrc32c"]);
}

#[tokio::test]
async fn what_is_missing_is_named() {
    let (_root, empty) = tree(NO_MODULES, &[]);
    assert_eq!(order(&empty, &[Target::welcome("tun")]).await.unwrap(), [""; 0]);
    let missing = order(&empty, &[Target::needed("erofs")]).await.unwrap_err();
    assert_eq!(missing, "the package has no module erofs");
    let (_root, tree) = tree(&[("erofs", &["depends=libcrc32c"])], &[]);
    let missing = order(&tree, &[Target::needed("erofs")]).await.unwrap_err();
    assert_eq!(missing, "a module needs libcrc32c, which the package does not have");
}

#[tokio::test]
async fn modules_that_need_each_other_are_refused() {
    let modules: &[(&str, &[&str])] =
        &[("a", &["depends=b"]), ("b", &["depends=c"]), ("c", &["depends=b"]), ("self", &["depends=self"])];
    let (_root, tree) = tree(modules, &[]);
    let circle = order(&tree, &[Target::needed("a")]).await.unwrap_err();
    assert_eq!(circle, "modules need each other: a -> b -> c -> b");
    let circle = order(&tree, &[Target::needed("self")]).await.unwrap_err();
    assert_eq!(circle, "modules need each other: self -> self");
}

#[tokio::test]
async fn what_is_no_module_is_refused_by_its_name() {
    let (root, tree) = tree(&[("erofs", &["depends="])], &[]);
    fs::write(root.path().join("kernel/drivers/deep/erofs.ko"), "no module").unwrap();
    let refused = order(&tree, &[Target::needed("erofs")]).await.unwrap_err();
    assert!(refused.ends_with("erofs.ko: not a kernel module for x86_64"), "{refused}");
}

#[tokio::test]
async fn compressed_modules_are_unpacked() {
    let (root, tree) = tree(&[("erofs", &["depends="])], &[]);
    let file = root.path().join("kernel/drivers/deep/erofs.ko");
    assert!(Command::new("xz").arg(&file).status().unwrap().success());
    drop(tree);
    let tree = Tree::read(root.path()).unwrap();
    let targets = [Target::needed("erofs")];
    assert_eq!(tree.load(&targets).await.unwrap().bytes("erofs"), module(&["depends="]));
    fs::write(file.with_extension("ko.xz"), "not compressed").unwrap();
    let refused = order(&tree, &targets).await.unwrap_err();
    assert!(refused.starts_with("xz failed: "), "{refused}");
}

#[test]
fn files_are_modules_by_their_names() {
    assert_eq!(name_of("crc32c-intel.ko").unwrap(), "crc32c_intel");
    assert_eq!(name_of("overlay.ko.xz").unwrap(), "overlay");
    for file in ["overlay", "overlay.o", ".ko", "a b.ko", "..ko", "modules.builtin", "overlay.ko.gz"] {
        assert_eq!(name_of(file), None, "{file}");
    }
}
