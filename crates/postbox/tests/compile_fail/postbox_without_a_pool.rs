use postbox::Postbox;

fn main() {
    let url = "postgres://localhost/shop";
    let _ = Postbox::builder(&url, "shop_outbox".parse().unwrap());
}
