//! Images of ours in the Docker Engine's store.

use std::collections::HashMap;

use bollard::errors::Error as ClientError;
use bollard::query_parameters::{ImportImageOptions, ListImagesOptions, RemoveImageOptions};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{Either, Full};

use super::engine::{Engine, trouble};
use super::skeleton::{LABEL, NAME, Skeleton};
use crate::wall::WallError;

/// They are small, and made again when they are needed: one for each way in which an image's top can look, and for each version.
const KEPT: usize = 16;

/// Makes sure that the engine has this image, and nothing else under its name.
pub(super) async fn ensure(engine: &Engine, skeleton: &Skeleton) -> Result<(), WallError> {
    if has(engine, skeleton).await? {
        return Ok(());
    }
    let body = Either::Left(Full::new(Bytes::from(skeleton.archive.clone())));
    let mut progress = Box::pin(engine.client.import_image(ImportImageOptions::default(), body, None));
    while let Some(step) = progress.next().await {
        step.map_err(|error| trouble("load our image", error))?;
    }
    if !has(engine, skeleton).await? {
        return Err(WallError::Failed("the Docker Engine loaded our image, and does not have it".into()));
    }
    forget_others(engine, skeleton).await;
    Ok(())
}

async fn has(engine: &Engine, skeleton: &Skeleton) -> Result<bool, WallError> {
    let found = match engine.client.inspect_image(&skeleton.reference).await {
        Ok(found) => found,
        Err(ClientError::DockerResponseServerError { status_code: 404, .. }) => return Ok(false),
        Err(error) => return Err(trouble("look for our image", error)),
    };
    let layers = found.root_fs.and_then(|root| root.layers).unwrap_or_default();
    Ok(layers == [skeleton.layer.clone()])
}

/// Those of other versions and other images, beyond a few. One that is in use stays.
async fn forget_others(engine: &Engine, skeleton: &Skeleton) {
    let filters = HashMap::from([("label".to_owned(), vec![LABEL.to_owned()])]);
    let options = ListImagesOptions { filters: Some(filters), ..ListImagesOptions::default() };
    let Ok(images) = engine.client.list_images(Some(options)).await else { return };
    let references = images.into_iter().flat_map(|image| image.repo_tags);
    let others = references.filter(|tag| tag.starts_with(NAME) && *tag != skeleton.reference);
    for reference in others.skip(KEPT) {
        let _ = engine.client.remove_image(&reference, None::<RemoveImageOptions>, None).await;
    }
}
