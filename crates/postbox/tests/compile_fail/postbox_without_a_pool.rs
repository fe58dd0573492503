use postbox::Postbox;

fn main() {
    let url = "postgres://localhost/shop".to_owned();
    let _ = Postbox::builder(&url, "shop_outbox".parse().unwrap());
}
