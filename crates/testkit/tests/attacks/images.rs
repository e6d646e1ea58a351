//! Attacks on the image store: 98. Archives (105) are tried by `tests/images.rs`.

use casemate_core::request::ImageRef;
use casemate_engine::images::{Images, Import, Origin, Progress};
use casemate_testkit::cell;
use casemate_testkit::tar::Tar;

use crate::row::Control::Without;
use crate::row::On::{Held, NotApplicable};
use crate::row::layers::ROOT_WRITING;
use crate::row::{Judged, Row, Scene, Trial};
use crate::run::judge;

pub(crate) const ROWS: &[Row] = &[Row {
    attacks: &[98],
    name: "write-root of a stored image",
    trial: Trial::Judged {
        judge: write_stored,
        // Its files belong to whoever owns the store, so only root of the host gets that far without the mount being read-only.
        container: Held(Without(ROOT_WRITING)),
        process: NotApplicable("this wall refuses images"),
    },
}];

/// The probe in a cell whose image is in the store: what it writes there, every later cell would see.
fn write_stored(scene: Scene) -> Judged {
    Box::pin(async move {
        let images = Images::of(scene.rig.home());
        let files = ["etc/passwd", "etc/hosts", "etc/hostname", "usr/bin/env"];
        let tar = files.iter().fold(Tar::new(), |tar, name| tar.file(name, "")).directory("opt");
        let imported = tokio::task::spawn_blocking(move || {
            let origin = Origin::Stream(Box::new(std::io::Cursor::new(tar.end())));
            let import = Import { name: Some("shared".into()), size_limit: 1 << 20, source: "suite".into() };
            images.import(origin, &import, &mut Silent)
        });
        let imported = imported.await.map_err(|error| error.to_string())?;
        let digest = imported.map_err(|error| error.to_string())?.digest;
        let image = ImageRef::Stored { name: "shared".into(), digest };
        let ran = cell(&scene.rig, &scene.stack).probe(["write-root"]).stored(image).run().await;
        judge(&ran)
    })
}

struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _: &str, _: Option<u64>) {}
    fn advance(&mut self, _: u64) {}
}
